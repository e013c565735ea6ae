-- When each agent was heard of last: by a packet or a receipt, as the gates report it every 30 s. A projection that the
-- log does not hold: what is lost comes again with the next sign of life.
SELECT apc_guard.maintain('signs of life of agents');

CREATE TABLE apc_log.agent_presence (
    agent_id text PRIMARY KEY,
    last_seen timestamptz NOT NULL
) WITH (fillfactor = 50);
SELECT apc_guard.exempt('apc_log.agent_presence');

-- The changes of hosts, which a gate reads when it takes shard 0: registered agents have many more.
CREATE INDEX registry_events_host ON apc_log.registry_events (agent_id, seq DESC)
    WHERE shard = 0 AND (change ->> 'action') = 'host';

-- What was known until now, from the newest HEARTBEATs, of which every one was logged.
INSERT INTO apc_log.agent_presence (agent_id, last_seen)
SELECT beat.sender_agent_id, max(beat.recorded_at) FROM apc_log.shards CROSS JOIN LATERAL (
    SELECT sender_agent_id, recorded_at FROM apc_log.agent_packets
    WHERE session_id = '_presence' AND shard = shards.shard AND verdict <> 'refused' ORDER BY seq DESC LIMIT 100000
) AS beat JOIN apc_log.agents ON agents.agent_id = beat.sender_agent_id
GROUP BY beat.sender_agent_id;

DO $$
BEGIN
    GRANT SELECT ON apc_log.agent_presence TO apc_reader, apc_writer;
    GRANT INSERT, UPDATE ON apc_log.agent_presence TO apc_writer;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

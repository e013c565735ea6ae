-- What is counted by minute, and by agent and day: filled from the log after commit (apc_persister.follower). Everything
-- here can be deleted and is made again. Days are days in UTC; HEARTBEATs count nowhere.
SELECT apc_guard.maintain('tables of packets by minute, and of agents by day');

CREATE TABLE apc_log.packet_minutes (
    minute timestamptz PRIMARY KEY,
    packets bigint NOT NULL,
    refused bigint NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE apc_log.agent_days (
    agent_id text NOT NULL,
    day date NOT NULL,
    -- What it sent, and how much of that was refused, on arrival or after it was held.
    packets bigint NOT NULL,
    refused bigint NOT NULL,
    -- Attempts of its handlers that ended with an outcome, and those that did not.
    handled bigint NOT NULL,
    failed bigint NOT NULL,
    -- As its handlers reported them; what a session did not charge is among them.
    tokens double precision NOT NULL,
    cost double precision NOT NULL,
    PRIMARY KEY (agent_id, day)
) WITH (fillfactor = 70);
CREATE INDEX agent_days_day ON apc_log.agent_days (day);

-- How many deliveries took how long from the verdict on the packet to the handler's outcome. Step n are those of
-- 2^(n/4) ms to 2^((n+1)/4) ms, so that a median read from it is off by 9 % at most.
CREATE TABLE apc_log.agent_latencies (
    agent_id text NOT NULL,
    day date NOT NULL,
    step smallint NOT NULL,
    deliveries bigint NOT NULL,
    PRIMARY KEY (agent_id, day, step)
) WITH (fillfactor = 70);

SELECT apc_guard.exempt('apc_log.packet_minutes');
SELECT apc_guard.exempt('apc_log.agent_days');
SELECT apc_guard.exempt('apc_log.agent_latencies');

-- Adds these entries to the counts of their minutes, agents and days.
CREATE FUNCTION apc_log.count_days(of_shard integer, first_seq bigint, last_seq bigint) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    INSERT INTO apc_log.packet_minutes AS known (minute, packets, refused)
    SELECT date_trunc('minute', recorded_at, 'UTC'), count(*), count(*) FILTER (WHERE verdict = 'refused')
    FROM apc_log.agent_packets
    WHERE shard = of_shard AND seq BETWEEN first_seq AND last_seq AND packet_type <> 'HEARTBEAT'
    GROUP BY 1
    ON CONFLICT (minute) DO UPDATE
    SET packets = known.packets + excluded.packets, refused = known.refused + excluded.refused;

    INSERT INTO apc_log.agent_days AS known (agent_id, day, packets, refused, handled, failed, tokens, cost)
    SELECT agent_id, day, sum(packets), sum(refused), sum(handled), sum(failed), sum(tokens), sum(cost) FROM (
        SELECT sender_agent_id AS agent_id, (recorded_at AT TIME ZONE 'UTC')::date AS day, 1 AS packets,
               (verdict = 'refused')::integer AS refused, 0 AS handled, 0 AS failed, 0::double precision AS tokens,
               0::double precision AS cost
        FROM apc_log.agent_packets
        WHERE shard = of_shard AND seq BETWEEN first_seq AND last_seq AND packet_type <> 'HEARTBEAT'
        UNION ALL
        SELECT recipient, (recorded_at AT TIME ZONE 'UTC')::date, 0, 0,
               coalesce((metadata ->> 'ended' = 'outcome')::integer, 0),
               coalesce((metadata ->> 'ended' <> 'outcome')::integer, 0),
               coalesce((metadata -> 'usage' ->> 'tokens')::double precision, 0),
               coalesce((metadata -> 'usage' ->> 'cost')::double precision, 0)
        FROM apc_log.packet_events
        WHERE shard = of_shard AND seq BETWEEN first_seq AND last_seq AND recipient <> ''
          AND (metadata ? 'ended' OR metadata ? 'usage')
        UNION ALL
        SELECT held.sender_agent_id, (hop.recorded_at AT TIME ZONE 'UTC')::date, 0, 1, 0, 0, 0, 0
        FROM apc_log.packet_events AS hop
        JOIN apc_log.packet_ids AS ids USING (shard, session_id, packet_id)
        JOIN apc_log.agent_packets AS held ON held.shard = ids.shard AND held.seq = ids.seq
        WHERE hop.shard = of_shard AND hop.seq BETWEEN first_seq AND last_seq AND hop.recipient = ''
          AND hop.from_state = 'SCHEMA_VALIDATED' AND hop.metadata ? 'refusal' AND held.verdict = 'held'
    ) AS counted GROUP BY agent_id, day
    ON CONFLICT (agent_id, day) DO UPDATE SET
        packets = known.packets + excluded.packets, refused = known.refused + excluded.refused,
        handled = known.handled + excluded.handled, failed = known.failed + excluded.failed,
        tokens = known.tokens + excluded.tokens, cost = known.cost + excluded.cost;

    INSERT INTO apc_log.agent_latencies AS known (agent_id, day, step, deliveries)
    SELECT hop.recipient, (hop.recorded_at AT TIME ZONE 'UTC')::date,
           -- Not by log(numeric, numeric): that took longer than everything else here.
           floor(4 * ln(greatest(1, 1000 * extract(epoch FROM
               hop.occurred_at[cardinality(hop.occurred_at)] - packet.judged_at)::double precision))
               / ln(2::double precision)), count(*)
    FROM apc_log.packet_events AS hop
    JOIN apc_log.packet_ids AS ids USING (shard, session_id, packet_id)
    JOIN apc_log.agent_packets AS packet ON packet.shard = ids.shard AND packet.seq = ids.seq
    WHERE hop.shard = of_shard AND hop.seq BETWEEN first_seq AND last_seq AND hop.recipient <> ''
      AND hop.metadata ->> 'ended' = 'outcome'
    GROUP BY 1, 2, 3
    ON CONFLICT (agent_id, day, step) DO UPDATE SET deliveries = known.deliveries + excluded.deliveries;
END $$;

DO $$
BEGIN
    GRANT SELECT ON apc_log.packet_minutes, apc_log.agent_days, apc_log.agent_latencies TO apc_reader, apc_writer;
    GRANT INSERT, UPDATE ON apc_log.packet_minutes, apc_log.agent_days, apc_log.agent_latencies TO apc_writer;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

-- The registry is what its changes say, and nothing else: rights cannot be granted by an edit beside the log. A change
-- counts once it is in the tree of its shard; `apc log verify` names one that the gate did not send.
DROP TABLE apc_log.agents;
DO $$
BEGIN
    -- Where there is no event trigger that does it.
    IF EXISTS (SELECT FROM apc_guard.log_tables WHERE relname = 'agents') THEN
        DELETE FROM apc_guard.log_tables WHERE relname = 'agents';
    END IF;
END $$;

-- Every shard logs every change, in one order: of an agent the shard with the most changes is ahead of the others.
CREATE VIEW apc_log.agents AS
WITH logged AS (
    SELECT event.shard, event.seq, event.recorded_at, event.agent_id, event.change_id, event.change,
           event.change ->> 'action' AS action, count(*) OVER (PARTITION BY event.agent_id, event.shard) AS changes
    FROM apc_log.registry_events AS event JOIN apc_log.log_edges AS tree USING (shard)
    WHERE event.seq <= tree.tree_size
), ahead AS (
    SELECT DISTINCT ON (agent_id) agent_id, shard FROM logged ORDER BY agent_id, changes DESC, shard
), latest AS (
    SELECT DISTINCT ON (agent_id) logged.* FROM logged JOIN ahead USING (agent_id, shard)
    ORDER BY agent_id, seq DESC
), added AS (
    SELECT DISTINCT ON (agent_id) logged.agent_id, logged.change FROM logged JOIN ahead USING (agent_id, shard)
    WHERE logged.action = 'add' ORDER BY agent_id, seq DESC
)
SELECT agent_id, added.change ->> 'broker_user' AS broker_user, added.change ->> 'role' AS role,
       added.change ->> 'swarm_id' AS swarm_id,
       ARRAY(SELECT jsonb_array_elements_text(added.change -> 'rights')) AS rights,
       ARRAY(SELECT jsonb_array_elements_text(added.change -> 'handles')) AS handles,
       coalesce(added.change -> 'public_keys', '{}') AS public_keys,
       latest.action = 'revoke' AS is_revoked, latest.change_id, latest.recorded_at AS updated_at
FROM added JOIN latest USING (agent_id);

DO $$
BEGIN
    ALTER VIEW apc_log.agents OWNER TO apc_owner;
    GRANT SELECT ON apc_log.agents TO apc_reader, apc_writer;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the view keeps its owner (%): connect as %', SQLERRM, current_user;
END $$;

-- The packet as jsonb, derived from the exact bytes. A sealed body (00 'apc1' …, apc_log.body_encryption) has none.
CREATE VIEW apc_log.packets AS
SELECT shard, seq, session_id, packet_id, packet_type, verdict, judged_at,
       CASE WHEN position('\x0061706331'::bytea IN substring(body_stored FROM 1 FOR 5)) = 0
            THEN convert_from(body_stored, 'UTF8')::jsonb END AS packet
FROM apc_log.agent_packets;

-- Every event of machine packet_lifecycle has one target state (a test compares this list with the contract).
CREATE FUNCTION apc_log.lifecycle_target(event text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN CASE event
    WHEN 'emit' THEN 'NORMALIZED'
    WHEN 'schema_pass' THEN 'SCHEMA_VALIDATED'
    WHEN 'schema_fail' THEN 'REJECTED_SCHEMA'
    WHEN 'policy_pass' THEN 'POLICY_VALIDATED'
    WHEN 'policy_fail' THEN 'REJECTED_POLICY'
    WHEN 'route_selected' THEN 'ROUTED'
    WHEN 'delivery_ack' THEN 'DELIVERED'
    WHEN 'consumer_apply' THEN 'APPLIED'
    WHEN 'consumer_reject' THEN 'REJECTED_POLICY'
    WHEN 'verification_pass' THEN 'VERIFIED'
    WHEN 'verification_fail' THEN 'REJECTED_POLICY'
    WHEN 'promotion_eligible' THEN 'PROMOTED'
    WHEN 'non_promotable_complete' THEN 'ARCHIVED'
    WHEN 'persisted' THEN 'ARCHIVED'
    WHEN 'ttl_expired' THEN 'EXPIRED'
    WHEN 'expired_before_handler' THEN 'EXPIRED'
    WHEN 'retry_scheduled' THEN 'ROUTED'
    WHEN 'dead_lettered' THEN 'DEAD_LETTERED'
    WHEN 'requeued' THEN 'ROUTED'
    WHEN 'discarded' THEN 'ARCHIVED'
    WHEN 'higher_conflict_resolution_arrived' THEN 'SUPERSEDED'
    WHEN 'supersession_recorded' THEN 'ARCHIVED'
    WHEN 'retraction_packet_received' THEN 'RETRACTED'
END;

-- How far a delivery has come, in the order of the diagram; null for ends that do not hold the others back.
CREATE FUNCTION apc_log.lifecycle_rank(state text) RETURNS integer
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN array_position(ARRAY[
    'DRAFT', 'NORMALIZED', 'SCHEMA_VALIDATED', 'POLICY_VALIDATED', 'ROUTED', 'DEAD_LETTERED', 'DELIVERED',
    'APPLIED', 'SUPERSEDED', 'VERIFIED', 'PROMOTED', 'ARCHIVED'], state);

-- One row a transition: a hop taken apart. A hop with to_state '' moves nothing: it records that a delivery ended
-- (metadata.ended, usage) after its machine had come to rest.
CREATE VIEW apc_log.packet_transitions AS
SELECT hop.shard, hop.seq, step.ordinal::integer AS ordinal, hop.session_id, hop.packet_id, hop.recipient, hop.attempt,
       step.event,
       CASE step.ordinal WHEN 1 THEN hop.from_state
            ELSE apc_log.lifecycle_target(hop.events[step.ordinal - 1]) END AS from_state,
       apc_log.lifecycle_target(step.event) AS to_state,
       step.occurred_at, hop.actor, hop.metadata, hop.epoch, hop.batch_no, hop.recorded_at
FROM apc_log.packet_events AS hop
CROSS JOIN LATERAL unnest(hop.events, hop.occurred_at) WITH ORDINALITY AS step(event, occurred_at, ordinal)
WHERE hop.to_state <> '';

-- The latest hop for each recipient; recipient '' is the machine that all share up to ROUTED.
CREATE VIEW apc_log.packet_recipient_state AS
SELECT DISTINCT ON (session_id, packet_id, recipient)
       session_id, packet_id, recipient, to_state AS state, attempt, shard, seq, recorded_at
FROM apc_log.packet_events
WHERE to_state <> ''
ORDER BY session_id, packet_id, recipient, seq DESC;

-- The overall state: RETRACTED when retracted, else that of the least advanced recipient; a recipient without its
-- own hop is where the whole packet is; rejected and expired recipients do not hold the rest back.
-- A form that the planner takes into the statement.
CREATE FUNCTION apc_log.packet_states(in_session text, packet uuid, recipients text[]) RETURNS TABLE (state text)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN shared.to_state IS NULL THEN 'DRAFT'
                WHEN shared.to_state <> 'ROUTED' THEN shared.to_state
                ELSE coalesce(own.least_advanced, own.at_rest, 'ROUTED') END
    FROM (
        SELECT (SELECT hop.to_state FROM apc_log.packet_events AS hop
                WHERE hop.session_id = in_session AND hop.packet_id = packet AND hop.recipient = ''
                  AND hop.to_state <> ''
                ORDER BY hop.seq DESC LIMIT 1) AS to_state
    ) AS shared
    CROSS JOIN LATERAL (
        SELECT (array_agg(latest.state ORDER BY ranked.rank) FILTER (WHERE ranked.rank IS NOT NULL))[1]
                   AS least_advanced,
               min(latest.state) AS at_rest
        FROM unnest(recipients) AS one(recipient)
        CROSS JOIN LATERAL (
            SELECT coalesce((SELECT hop.to_state FROM apc_log.packet_events AS hop
                             WHERE hop.session_id = in_session AND hop.packet_id = packet
                               AND hop.recipient = one.recipient AND hop.to_state <> ''
                             ORDER BY hop.seq DESC LIMIT 1), 'ROUTED') AS state
        ) AS latest
        CROSS JOIN LATERAL (SELECT apc_log.lifecycle_rank(latest.state) AS rank) AS ranked
    ) AS own
$$;

CREATE FUNCTION apc_log.packet_state_of(in_session text, packet uuid, recipients text[]) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT state FROM apc_log.packet_states(in_session, packet, recipients)
$$;

CREATE VIEW apc_log.packet_state AS
SELECT session_id, packet_id, shard, seq, apc_log.packet_state_of(session_id, packet_id, recipients) AS state
FROM apc_log.agent_packets;

-- Where a session stands by its log alone; the projection `sessions` must agree.
CREATE VIEW apc_log.session_state AS
SELECT DISTINCT ON (session_id)
       session_id, to_state AS state, round, generation, step, event, cause_packet_id, shard, seq, recorded_at
FROM apc_log.coordination_events
ORDER BY session_id, seq DESC;

-- Packets that rest on a retracted one: the hop that says so moves no machine. `because` is what they rest on; the
-- retraction is null where a packet came after it and was stale from the beginning.
CREATE VIEW apc_log.packet_stale AS
SELECT session_id, packet_id, (metadata #>> '{stale,because}')::uuid AS because_packet_id,
       (metadata #>> '{stale,retraction}')::uuid AS retraction_packet_id, occurred_at[1] AS marked_at, shard, seq
FROM apc_log.packet_events
WHERE recipient = '' AND attempt = 0 AND to_state = '' AND events = ARRAY['stale'];

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

-- The packet as jsonb, derived from the exact bytes.
CREATE VIEW apc_log.packets AS
SELECT shard, seq, session_id, packet_id, packet_type, verdict, judged_at,
       convert_from(body_stored, 'UTF8')::jsonb AS packet
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

-- The overall state: RETRACTED when retracted, else that of the least advanced recipient; a recipient without a
-- hop of its own is where the whole packet is; rejected and expired recipients do not hold the rest back.
CREATE FUNCTION apc_log.packet_state_of(in_session text, packet uuid, recipients text[]) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    WITH shared AS (
        SELECT to_state FROM apc_log.packet_events
        WHERE session_id = in_session AND packet_id = packet AND recipient = '' AND to_state <> ''
        ORDER BY seq DESC LIMIT 1
    ), own AS (
        SELECT coalesce(latest.to_state, 'ROUTED') AS state
        FROM unnest(recipients) AS one
        LEFT JOIN LATERAL (
            SELECT to_state FROM apc_log.packet_events
            WHERE session_id = in_session AND packet_id = packet AND recipient = one AND to_state <> ''
            ORDER BY seq DESC LIMIT 1
        ) AS latest ON true
    )
    SELECT CASE WHEN shared.to_state <> 'ROUTED' THEN shared.to_state
                ELSE coalesce((SELECT state FROM own WHERE apc_log.lifecycle_rank(state) IS NOT NULL
                               ORDER BY apc_log.lifecycle_rank(state) LIMIT 1),
                              (SELECT min(state) FROM own), 'ROUTED') END
    FROM (SELECT coalesce((SELECT to_state FROM shared), 'DRAFT') AS to_state) AS shared
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

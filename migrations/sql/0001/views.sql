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

-- One row a transition: a hop taken apart.
CREATE VIEW apc_log.packet_transitions AS
SELECT hop.shard, hop.seq, step.ordinal::integer AS ordinal, hop.session_id, hop.packet_id, hop.recipient, hop.attempt,
       step.event,
       CASE step.ordinal WHEN 1 THEN hop.from_state
            ELSE apc_log.lifecycle_target(hop.events[step.ordinal - 1]) END AS from_state,
       apc_log.lifecycle_target(step.event) AS to_state,
       step.occurred_at, hop.actor, hop.metadata, hop.epoch, hop.batch_no, hop.recorded_at
FROM apc_log.packet_events AS hop
CROSS JOIN LATERAL unnest(hop.events, hop.occurred_at) WITH ORDINALITY AS step(event, occurred_at, ordinal);

-- The latest hop for each recipient; recipient '' is the machine that all share up to ROUTED.
CREATE VIEW apc_log.packet_recipient_state AS
SELECT DISTINCT ON (session_id, packet_id, recipient)
       session_id, packet_id, recipient, to_state AS state, attempt, shard, seq, recorded_at
FROM apc_log.packet_events
ORDER BY session_id, packet_id, recipient, seq DESC;

-- The overall state: RETRACTED when retracted, else that of the least advanced recipient; a recipient without a
-- hop of its own is where the whole packet is; rejected and expired recipients do not hold the rest back.
CREATE VIEW apc_log.packet_state AS
SELECT packet.session_id, packet.packet_id, packet.shard, packet.seq,
       CASE WHEN shared.state IS DISTINCT FROM 'ROUTED' THEN coalesce(shared.state, 'DRAFT')
            ELSE coalesce(own.least_advanced, own.ended, 'ROUTED') END AS state
FROM apc_log.agent_packets AS packet
LEFT JOIN LATERAL (
    SELECT hop.to_state AS state FROM apc_log.packet_events AS hop
    WHERE hop.session_id = packet.session_id AND hop.packet_id = packet.packet_id AND hop.recipient = ''
    ORDER BY hop.seq DESC LIMIT 1
) AS shared ON true
LEFT JOIN LATERAL (
    SELECT (array_agg(each.state ORDER BY apc_log.lifecycle_rank(each.state))
                FILTER (WHERE apc_log.lifecycle_rank(each.state) IS NOT NULL))[1] AS least_advanced,
           min(each.state) AS ended
    FROM (
        SELECT coalesce(latest.state, 'ROUTED') AS state
        FROM unnest(packet.recipients) AS recipient
        LEFT JOIN LATERAL (
            SELECT hop.to_state AS state FROM apc_log.packet_events AS hop
            WHERE hop.session_id = packet.session_id AND hop.packet_id = packet.packet_id
              AND hop.recipient = recipient
            ORDER BY hop.seq DESC LIMIT 1
        ) AS latest ON true
    ) AS each
) AS own ON true;

-- Where a session stands by its log alone; the projection `sessions` must agree.
CREATE VIEW apc_log.session_state AS
SELECT DISTINCT ON (session_id)
       session_id, to_state AS state, round, generation, step, event, cause_packet_id, shard, seq, recorded_at
FROM apc_log.coordination_events
ORDER BY session_id, seq DESC;

-- Sessions that were named and have not begun no longer pile up: a name goes when its session begins, and with the segment
-- that named it. And archived segments can be looked at in schema apc_restored, beside the log.
SELECT apc_guard.maintain('names of sessions that have not begun go with their segment; a schema for restored segments');

-- That names were let go of with a segment: who asks for a session that nothing names any more looks into the archive.
ALTER TABLE apc_guard.segments ADD COLUMN had_names boolean NOT NULL DEFAULT false;
CREATE OR REPLACE VIEW apc_log.segments AS
SELECT shard, first_seq, last_seq,
       CASE WHEN state = 'open' AND last_seq < (SELECT next_seq FROM apc_log.shards WHERE shards.shard = segments.shard)
            THEN 'sealed' ELSE state END AS state,
       record_seq, root, manifest, had_names
FROM apc_guard.segments;

-- Lets go of names whose sessions have begun, once their ranges have what was known of the names.
CREATE FUNCTION apc_guard.forget_begun(names text[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM apc_log.unopened_sessions AS named USING apc_log.sessions AS session
    WHERE named.session_id = ANY (names) AND session.session_id = named.session_id
      AND (session.first_seq = 0 OR session.shard = named.shard AND session.first_seq <= named.first_seq AND named.first_seq > 0)
$$;
SELECT apc_guard.forget_begun(ARRAY(SELECT session_id FROM apc_log.unopened_sessions JOIN apc_log.sessions USING (session_id)));

-- Lets go of names that nothing but released segments knows. Where several shards have one, all must have let go of it.
CREATE FUNCTION apc_guard.forget_released(in_shard integer) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    WITH ends AS MATERIALIZED (
        SELECT shards.shard, coalesce(max(last_seq), 0) AS released FROM apc_log.shards
        LEFT JOIN apc_guard.segments ON segments.shard = shards.shard AND state IN ('released', 'expired') GROUP BY shards.shard
    ), gone AS (
        DELETE FROM apc_log.unopened_sessions AS named
        WHERE named.first_seq > 0 AND named.shard = in_shard AND named.last_seq <= (SELECT released FROM ends WHERE shard = in_shard)
           OR named.first_seq = 0 AND named.last_seq <= (SELECT min(released) FROM ends)
        RETURNING shard, first_seq, last_seq
    )
    UPDATE apc_guard.segments AS segment SET had_names = true
    WHERE state IN ('released', 'expired') AND NOT had_names AND EXISTS (
        SELECT FROM gone WHERE gone.first_seq = 0
        OR gone.shard = segment.shard AND gone.first_seq <= segment.last_seq AND gone.last_seq >= segment.first_seq)
$$;

-- As 0123_archive.sql has it, with the names.
CREATE OR REPLACE FUNCTION apc_guard.drop_released(in_shard integer, first bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    item record;
BEGIN
    IF NOT EXISTS (SELECT FROM apc_guard.segments WHERE shard = in_shard AND first_seq = first AND state IN ('released', 'expired')) THEN
        RAISE EXCEPTION 'the segment from entry % of shard % is not released', first, in_shard
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM apc_guard.begin_act();
    FOR item IN SELECT * FROM apc_guard.divided() LOOP
        PERFORM apc_guard.drop_table(apc_guard.segment_name(item.relname, in_shard, first));
    END LOOP;
    PERFORM apc_guard.end_act();
    PERFORM apc_guard.forget_released(in_shard);
END $$;

REVOKE ALL ON FUNCTION apc_guard.forget_begun(text[]), apc_guard.forget_released(integer) FROM PUBLIC;

-- How a packet's deliveries stand, as 0104_states.sql and 0120_session_ranges.sql say it. Its hops are looked up once, by
-- their unique index: with ORDER BY seq LIMIT 1 the planner walks backwards through all hops of the range for each packet.
CREATE OR REPLACE FUNCTION apc_log.packet_states(
    in_session text, packet uuid, recipients text[], in_shard integer, first_seq bigint, last_seq bigint
) RETURNS TABLE (state text)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN found.shared IS NULL THEN 'DRAFT'
                WHEN found.shared <> 'ROUTED' THEN found.shared
                ELSE coalesce(found.least_advanced, found.at_rest, 'ROUTED') END
    FROM (
        SELECT min(latest.to_state) FILTER (WHERE one.recipient = '') AS shared,
               (array_agg(now.state ORDER BY ranked.rank) FILTER (WHERE one.recipient <> '' AND ranked.rank IS NOT NULL))[1]
                   AS least_advanced,
               min(now.state) FILTER (WHERE one.recipient <> '') AS at_rest
        FROM unnest(array_append(recipients, '')) AS one(recipient)
        LEFT JOIN (
            SELECT hop.recipient, (array_agg(hop.to_state ORDER BY hop.seq DESC))[1] AS to_state
            FROM apc_log.packet_events AS hop
            WHERE hop.session_id = in_session AND hop.packet_id = packet AND hop.to_state <> ''
              AND hop.shard = in_shard AND hop.seq BETWEEN first_seq AND last_seq
            GROUP BY hop.recipient
        ) AS latest ON latest.recipient = one.recipient
        CROSS JOIN LATERAL (SELECT coalesce(latest.to_state, 'ROUTED') AS state) AS now
        CROSS JOIN LATERAL (SELECT apc_log.lifecycle_rank(now.state) AS rank) AS ranked
    ) AS found
$$;

-- The same, of the whole log.
CREATE OR REPLACE FUNCTION apc_log.packet_states(in_session text, packet uuid, recipients text[]) RETURNS TABLE (state text)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN found.shared IS NULL THEN 'DRAFT'
                WHEN found.shared <> 'ROUTED' THEN found.shared
                ELSE coalesce(found.least_advanced, found.at_rest, 'ROUTED') END
    FROM (
        SELECT min(latest.to_state) FILTER (WHERE one.recipient = '') AS shared,
               (array_agg(now.state ORDER BY ranked.rank) FILTER (WHERE one.recipient <> '' AND ranked.rank IS NOT NULL))[1]
                   AS least_advanced,
               min(now.state) FILTER (WHERE one.recipient <> '') AS at_rest
        FROM unnest(array_append(recipients, '')) AS one(recipient)
        LEFT JOIN (
            SELECT hop.recipient, (array_agg(hop.to_state ORDER BY hop.seq DESC))[1] AS to_state
            FROM apc_log.packet_events AS hop
            WHERE hop.session_id = in_session AND hop.packet_id = packet AND hop.to_state <> ''
            GROUP BY hop.recipient
        ) AS latest ON latest.recipient = one.recipient
        CROSS JOIN LATERAL (SELECT coalesce(latest.to_state, 'ROUTED') AS state) AS now
        CROSS JOIN LATERAL (SELECT apc_log.lifecycle_rank(now.state) AS rank) AS ranked
    ) AS found
$$;

-- As 0104_states.sql has them, without STRICT: so the planner takes them into the statement. Null gives null all the same.
CREATE OR REPLACE FUNCTION apc_log.lifecycle_target(event text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE event
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

CREATE OR REPLACE FUNCTION apc_log.lifecycle_rank(state text) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN array_position(ARRAY[
    'DRAFT', 'NORMALIZED', 'SCHEMA_VALIDATED', 'POLICY_VALIDATED', 'ROUTED', 'DEAD_LETTERED', 'DELIVERED',
    'APPLIED', 'SUPERSEDED', 'VERIFIED', 'PROMOTED', 'ARCHIVED'], state);

-- Rows of archived segments, to be read by SQL: never part of the log. The archiver makes and drops the tables in it.
CREATE SCHEMA IF NOT EXISTS apc_restored;
DO $$
BEGIN
    GRANT EXECUTE ON FUNCTION apc_guard.forget_begun(text[]) TO apc_writer, apc_owner;
    GRANT USAGE, CREATE ON SCHEMA apc_restored TO apc_archiver;
    GRANT USAGE ON SCHEMA apc_restored TO apc_owner, apc_reader, apc_writer;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

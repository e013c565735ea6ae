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

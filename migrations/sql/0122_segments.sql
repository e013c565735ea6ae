-- The tables of the log are divided into segments: of each shard the entries from one number to another, in a partition of each
-- table. A segment that is full never changes again, so that it can be archived and let go of as a whole (ADR 26). Needs the owner
-- of the guard, which the revision changes, and nobody else at work: entries of a log with one shard stay where they are, those
-- of several shards are copied.
SELECT apc_guard.maintain('the log is divided into segments');

-- Which segments there are. The guard alone writes here: readers and the archive trust it to know where entries are.
CREATE TABLE apc_guard.segments (
    shard integer NOT NULL CHECK (shard >= 0),
    first_seq bigint NOT NULL CHECK (first_seq >= 1 AND (first_seq - 1) % 256 = 0),
    last_seq bigint NOT NULL CHECK (last_seq >= first_seq AND last_seq % 256 = 0),
    state text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'recorded', 'released', 'expired')),
    -- The entry that records its archive, the root over its leaves, and what was recorded of its objects.
    record_seq bigint,
    root bytea,
    manifest jsonb,
    -- What the tables that shall take its place were made by: sessions and contracts that stayed then.
    thin_sessions text[],
    thin_contracts bytea[],
    PRIMARY KEY (shard, first_seq)
);

-- The tables that are divided, and what is unique in each segment of one. What is unique over segments the writer checks under
-- the lock on the head of the shard, and `apc log verify` in the whole.
CREATE FUNCTION apc_guard.divided() RETURNS TABLE (relname text, unique_columns text)
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    VALUES ('agent_packets', NULL),
           ('packet_events', 'session_id, packet_id, recipient, attempt, to_state'),
           ('packet_lineage', 'session_id, packet_id'),
           ('coordination_events', 'session_id, step, event'),
           ('packet_conflicts', NULL),
           ('packet_ids', 'session_id, packet_id'),
           ('packet_search', NULL),
           ('log_tiles', NULL)
$$;

-- The partition of a table that holds a segment, and the bounds that it is attached with. Of tiles those over leaves alone: the
-- tiles above them are few, and stay.
CREATE FUNCTION apc_guard.segment_name(relname text, in_shard integer, first bigint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN format('%s_%s_%s', relname, in_shard, first);
CREATE FUNCTION apc_guard.segment_bounds(relname text, in_shard integer, first bigint, last bigint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
RETURN CASE relname
    WHEN 'log_tiles' THEN format('FROM (0, %s, %s) TO (0, %s, %s)', in_shard, (first - 1) / 256, in_shard, last / 256)
    ELSE format('FROM (%s, %s) TO (%s, %s)', in_shard, first, in_shard, last + 1) END;

-- Attaches a table as a segment and puts it under the guard, with triggers that are its own. Attaching it waits for nobody who
-- reads or writes the others.
CREATE FUNCTION apc_guard.attach(part regclass, divided regclass, bounds text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    guarded constant boolean := (SELECT is_append_only FROM apc_guard.log_tables WHERE name = divided);
    own record;
BEGIN
    IF guarded THEN
        PERFORM apc_guard.register(part); -- in a maintenance the freeze has done so already
    ELSE
        INSERT INTO apc_guard.log_tables (name, relname, is_append_only, new_in)
        SELECT oid, pg_class.relname, false, pg_current_xact_id() FROM pg_class WHERE oid = part
        ON CONFLICT (name) DO UPDATE SET is_append_only = false;
        FOR own IN SELECT tgname FROM pg_trigger WHERE tgrelid = part LOOP -- where the freeze has guarded it already
            EXECUTE format('DROP TRIGGER %I ON %s', own.tgname, part);
        END LOOP;
    END IF;
    UPDATE apc_guard.log_tables SET part_of = divided WHERE name = part;
    EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES %s', divided, part, attach.bounds);
    UPDATE apc_guard.log_tables SET bounds = pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = name AND name = part;
END $$;

-- An empty table like a divided one, with the indexes of a segment, which belongs to who owns the divided one.
CREATE FUNCTION apc_guard.make_part(part text, divided regclass, unique_columns text) RETURNS regclass
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('CREATE TABLE apc_log.%I (LIKE %s INCLUDING ALL)', part, divided);
    IF unique_columns IS NOT NULL THEN
        EXECUTE format('CREATE UNIQUE INDEX ON apc_log.%I (%s)', part, unique_columns);
    END IF;
    IF part LIKE 'agent\_packets%' THEN -- as 0102_log.sql says
        EXECUTE format('ALTER TABLE apc_log.%I SET (toast_tuple_target = 8160)', part);
    END IF;
    EXECUTE format('ALTER TABLE apc_log.%I OWNER TO %s', part,
                   (SELECT relowner::regrole FROM pg_class WHERE oid = divided));
    RETURN format('apc_log.%I', part)::regclass;
END $$;

CREATE FUNCTION apc_guard.open_segment(in_shard integer, first bigint, last bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    item record;
    divided regclass;
BEGIN
    INSERT INTO apc_guard.segments (shard, first_seq, last_seq) VALUES (in_shard, first, last);
    FOR item IN SELECT * FROM apc_guard.divided() LOOP
        divided := format('apc_log.%I', item.relname)::regclass;
        PERFORM apc_guard.attach(
            apc_guard.make_part(apc_guard.segment_name(item.relname, in_shard, first), divided, item.unique_columns),
            divided, apc_guard.segment_bounds(item.relname, in_shard, first, last));
    END LOOP;
END $$;

-- Opens segments of a shard until it has `ahead` of them that nothing stands in yet; returns the last entry that there is room
-- for. A segment has 2^16 entries at least, `most` at most, and as many as come in about three hours, so that a log of a week
-- has fewer than 64. It is a subtree of the shard's tree.
CREATE FUNCTION apc_guard.open_segments(in_shard integer, ahead integer, most bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    smallest constant bigint := 65536;
    largest constant bigint := least(greatest(most, smallest), 16777216);
    next constant bigint := coalesce((SELECT next_seq FROM apc_log.shards WHERE shard = in_shard), 1);
    is_own constant boolean := NOT apc_guard.in_maintenance();
    last bigint;
    unused integer;
    since timestamptz;
    size bigint := smallest;
    fitting bigint;
BEGIN
    IF in_shard IS NULL OR in_shard NOT BETWEEN 0 AND 255 OR ahead IS NULL OR ahead NOT BETWEEN 0 AND 16 THEN
        RAISE EXCEPTION 'a shard is 0 to 255, and at most 16 segments are opened ahead' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    LOCK TABLE apc_guard.segments IN SHARE ROW EXCLUSIVE MODE;
    SELECT coalesce(max(last_seq), 0), count(*) FILTER (WHERE first_seq > next) INTO last, unused
    FROM apc_guard.segments WHERE shard = in_shard;
    SELECT min(recorded_at) INTO since FROM (
        SELECT recorded_at FROM apc_log.log_checkpoints WHERE shard = in_shard AND tree_size >= next - smallest
        ORDER BY tree_size LIMIT 1) AS earlier;
    WHILE next > smallest AND size < largest
          AND size * 2 * extract(epoch FROM clock_timestamp() - since) <= 10000 * smallest LOOP
        size := size * 2;
    END LOOP;
    IF (unused < ahead OR last < next) AND is_own THEN
        INSERT INTO apc_guard.maintenance (actor, reason) VALUES ('', 'segments are opened');
    END IF;
    WHILE unused < ahead OR last < next LOOP
        fitting := size;
        WHILE last % fitting <> 0 LOOP
            fitting := fitting / 2; -- it begins where a subtree of its size does
        END LOOP;
        PERFORM apc_guard.open_segment(in_shard, last + 1, last + fitting);
        last := last + fitting;
        unused := unused + 1;
    END LOOP;
    DELETE FROM apc_guard.maintenance WHERE transaction_id = pg_current_xact_id_if_assigned() AND actor = '';
    RETURN last;
END $$;

-- Sessions that entries name and that have not begun, or never do: what is refused names any. Where these entries stand;
-- first_seq 0 where those of another shard name it as well.
CREATE TABLE apc_log.unopened_sessions (
    session_id text PRIMARY KEY,
    shard integer NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint NOT NULL
);
SELECT apc_guard.exempt('apc_log.unopened_sessions');
INSERT INTO apc_log.unopened_sessions (session_id, shard, first_seq, last_seq)
SELECT session_id, min(shard), CASE WHEN min(shard) = max(shard) THEN min(seq) ELSE 0 END, max(seq)
FROM (SELECT session_id, shard, seq FROM apc_log.agent_packets
      UNION ALL
      SELECT session_id, shard, seq FROM apc_log.packet_events
      UNION ALL
      SELECT session_id, shard, seq FROM apc_log.packet_conflicts WHERE session_id IS NOT NULL) AS entry
WHERE NOT EXISTS (SELECT FROM apc_log.sessions WHERE sessions.session_id = entry.session_id)
GROUP BY session_id;

-- In which blocks of 2^16 entries packets name a run: pages of a run read the segments of these. Filled as those of 0114.
CREATE TABLE apc_log.run_blocks (
    run_id text NOT NULL,
    shard integer NOT NULL,
    block bigint NOT NULL, -- entries block * 2^16 + 1 and on
    PRIMARY KEY (run_id, shard, block)
);
SELECT apc_guard.exempt('apc_log.run_blocks');
CREATE FUNCTION apc_log.note_blocks(of_shard integer, first_seq bigint, last_seq bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO apc_log.run_blocks (run_id, shard, block)
    SELECT DISTINCT run_id, shard, (seq - 1) >> 16 FROM apc_log.agent_packets
    WHERE shard = of_shard AND seq BETWEEN first_seq AND last_seq AND run_id IS NOT NULL
    ON CONFLICT DO NOTHING
$$;

CREATE OR REPLACE FUNCTION apc_log.first_named(named text, in_shard integer) RETURNS bigint
LANGUAGE sql STABLE
RETURN (SELECT CASE WHEN shard = in_shard THEN first_seq ELSE 0 END FROM apc_log.unopened_sessions WHERE session_id = named);

-- Takes entries, of each session the first and the last, into the ranges of sessions: of those that have begun, and of others.
-- Those of the presence of agents are in no session.
CREATE FUNCTION apc_log.widen_ranges(in_shard integer, names text[], firsts bigint[], lasts bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE apc_log.sessions AS session
    SET first_seq = CASE WHEN session.shard <> in_shard THEN 0
                         WHEN session.first_seq IS NULL
                         THEN least(apc_log.first_named(session.session_id, in_shard), named.first)
                         ELSE least(session.first_seq, named.first) END,
        last_seq = greatest(session.last_seq, named.last)
    FROM unnest(names, firsts, lasts) AS named(session_id, first, last)
    WHERE session.session_id = named.session_id AND (
        session.first_seq IS NULL OR session.last_seq IS NULL OR named.first < session.first_seq
        OR named.last > session.last_seq OR session.shard <> in_shard AND session.first_seq <> 0);
    INSERT INTO apc_log.unopened_sessions AS known (session_id, shard, first_seq, last_seq)
    SELECT named.session_id, in_shard, named.first, named.last FROM unnest(names, firsts, lasts) AS named(session_id, first, last)
    WHERE NOT EXISTS (SELECT FROM apc_log.sessions AS session WHERE session.session_id = named.session_id)
    ORDER BY named.session_id
    ON CONFLICT (session_id) DO UPDATE SET
        first_seq = CASE WHEN known.shard <> in_shard THEN 0 ELSE least(known.first_seq, excluded.first_seq) END,
        last_seq = greatest(known.last_seq, excluded.last_seq);
END $$;

CREATE OR REPLACE FUNCTION apc_log.bound_sessions(in_shard integer, most bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    head record;
    until bigint;
BEGIN
    SELECT bounded_seq AS done, next_seq - 1 AS last INTO head FROM apc_log.shards WHERE shard = in_shard FOR UPDATE;
    IF NOT FOUND OR head.done >= head.last THEN
        RETURN false;
    END IF;
    until := least(head.done + most, head.last);
    PERFORM apc_log.widen_ranges(in_shard, array_agg(session_id), array_agg(first), array_agg(last))
    FROM (
        SELECT session_id, min(seq) AS first, max(seq) AS last FROM (
            SELECT session_id, seq FROM apc_log.agent_packets
            WHERE shard = in_shard AND seq > head.done AND seq <= until
            UNION ALL
            SELECT session_id, seq FROM apc_log.packet_events
            WHERE shard = in_shard AND seq > head.done AND seq <= until
            UNION ALL
            SELECT session_id, seq FROM apc_log.packet_lineage
            WHERE shard = in_shard AND seq > head.done AND seq <= until
            UNION ALL
            SELECT session_id, seq FROM apc_log.coordination_events
            WHERE shard = in_shard AND seq > head.done AND seq <= until
            UNION ALL
            SELECT session_id, seq FROM apc_log.packet_conflicts
            WHERE shard = in_shard AND seq > head.done AND seq <= until
        ) AS entry WHERE session_id IS NOT NULL AND session_id <> '_presence' GROUP BY session_id
    ) AS named;
    UPDATE apc_log.shards SET bounded_seq = until WHERE shard = in_shard;
    RETURN until < head.last;
END $$;

-- The tables as they are, divided: views are made again above them.
DO $$
DECLARE
    view record;
    views jsonb;
    item record;
    piece record;
    shards constant integer[] := ARRAY(SELECT shard FROM apc_log.shards ORDER BY shard);
    shard_end bigint;
    old regclass;
    divided regclass;
    columns text;
    lost bigint;
BEGIN
    WITH RECURSIVE above AS (
        SELECT pg_rewrite.ev_class AS oid, 1 AS height
        FROM pg_depend JOIN pg_rewrite ON classid = 'pg_rewrite'::regclass AND objid = pg_rewrite.oid
        WHERE refclassid = 'pg_class'::regclass AND refobjid IN (
            SELECT format('apc_log.%I', one.relname)::regclass FROM apc_guard.divided() AS one)
        UNION
        SELECT pg_rewrite.ev_class, above.height + 1
        FROM above JOIN pg_depend ON refclassid = 'pg_class'::regclass AND refobjid = above.oid
        JOIN pg_rewrite ON classid = 'pg_rewrite'::regclass AND objid = pg_rewrite.oid
        WHERE pg_rewrite.ev_class <> above.oid
    )
    SELECT jsonb_agg(jsonb_build_object('name', oid::regclass::text, 'height', height, 'body', pg_get_viewdef(oid),
                                        'foreign', relkind <> 'v' OR relnamespace <> 'apc_log'::regnamespace
                                                   OR reloptions IS NOT NULL)
                     ORDER BY height)
    INTO views
    FROM (SELECT oid, max(height) AS height FROM above GROUP BY oid) AS highest JOIN pg_class USING (oid);
    FOR view IN SELECT * FROM jsonb_to_recordset(views) AS one(name text, height integer, "foreign" boolean) LOOP
        IF view."foreign" THEN
            RAISE EXCEPTION '% reads a table of the log that is divided now', view.name
                USING HINT = 'it is not one of ours: drop it, migrate, and create it again', ERRCODE = 'dependent_objects_still_exist';
        END IF;
    END LOOP;
    FOR view IN SELECT * FROM jsonb_to_recordset(views) AS one(name text, height integer) ORDER BY height DESC LOOP
        EXECUTE format('DROP VIEW %s', view.name);
    END LOOP;

    FOR item IN SELECT * FROM apc_guard.divided() LOOP
        -- Out of the way, with its indexes: the names belong to the divided table.
        DELETE FROM apc_guard.log_tables WHERE name = format('apc_log.%I', item.relname)::regclass;
        EXECUTE format('ALTER TABLE apc_log.%I RENAME TO %I', item.relname, item.relname || '_undivided');
        old := format('apc_log.%I', item.relname || '_undivided')::regclass;
        FOR piece IN SELECT indexrelid::regclass AS name, pg_class.relname FROM pg_index JOIN pg_class ON oid = indexrelid
                     WHERE indrelid = old LOOP
            EXECUTE format('ALTER INDEX %s RENAME TO %I', piece.name, 'undivided_' || left(piece.relname, 52));
        END LOOP;
        EXECUTE format('CREATE TABLE apc_log.%I (LIKE %s INCLUDING ALL EXCLUDING INDEXES) PARTITION BY RANGE (%s)', item.relname,
                       old, CASE item.relname WHEN 'log_tiles' THEN 'level, shard, index' ELSE 'shard, seq' END);
        divided := format('apc_log.%I', item.relname)::regclass;
        IF item.relname <> 'packet_ids' THEN -- which is found by session and packet alone
            EXECUTE format('ALTER TABLE %s ADD PRIMARY KEY (%s)', divided,
                           CASE item.relname WHEN 'log_tiles' THEN 'shard, level, index' ELSE 'shard, seq' END);
        END IF;
        FOR piece IN
            SELECT pg_get_indexdef(indexrelid) AS definition, substr(pg_class.relname, 11) AS name
            FROM pg_index JOIN pg_class ON oid = indexrelid WHERE indrelid = old AND NOT indisunique
        LOOP
            EXECUTE regexp_replace(piece.definition, '^CREATE INDEX \S+ ON \S+',
                                   format('CREATE INDEX %I ON %s', piece.name, divided));
        END LOOP;
        IF item.relname = 'packet_search' THEN
            PERFORM apc_guard.exempt(divided);
        ELSE
            PERFORM apc_guard.register(divided);
        END IF;
    END LOOP;
    PERFORM apc_guard.attach(apc_guard.make_part('log_tiles_above', 'apc_log.log_tiles', NULL), 'apc_log.log_tiles',
                             'FROM (1, MINVALUE, MINVALUE) TO (MAXVALUE, MAXVALUE, MAXVALUE)');

    -- Room up to the end of the subtree of 2^16 entries that the log is in, or has just filled.
    FOR piece IN SELECT shard, (next_seq / 65536 + 1) * 65536 AS last FROM apc_log.shards LOOP
        INSERT INTO apc_guard.segments (shard, first_seq, last_seq) VALUES (piece.shard, 1, piece.last);
    END LOOP;
    FOR item IN SELECT * FROM apc_guard.divided() LOOP
        old := format('apc_log.%I', item.relname || '_undivided')::regclass;
        divided := format('apc_log.%I', item.relname)::regclass;
        IF cardinality(shards) = 1 AND item.relname <> 'log_tiles' THEN
            -- Its rows stay. The check, once it holds, spares the table another reading.
            SELECT last_seq + 1 INTO shard_end FROM apc_guard.segments WHERE shard = shards[1];
            EXECUTE format('ALTER TABLE %s ADD CONSTRAINT within_segment CHECK (shard = %s AND seq >= 1 AND seq < %s)',
                           old, shards[1], shard_end);
            DELETE FROM apc_guard.log_tables WHERE name = old;
            EXECUTE format('ALTER TABLE %s RENAME TO %I', old, apc_guard.segment_name(item.relname, shards[1], 1));
            PERFORM apc_guard.attach(old, divided, apc_guard.segment_bounds(item.relname, shards[1], 1, shard_end - 1));
            EXECUTE format('ALTER TABLE %s DROP CONSTRAINT within_segment', old);
            CONTINUE;
        END IF;
        FOR piece IN SELECT * FROM apc_guard.segments ORDER BY shard LOOP
            PERFORM apc_guard.attach(
                apc_guard.make_part(apc_guard.segment_name(item.relname, piece.shard, 1), divided, item.unique_columns),
                divided, apc_guard.segment_bounds(item.relname, piece.shard, 1, piece.last_seq));
        END LOOP;
        SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO columns FROM pg_attribute
        WHERE attrelid = old AND attnum > 0 AND NOT attisdropped AND attgenerated = '';
        -- A row that belongs to no shard has no segment: the copy fails and says so, and nothing is lost.
        EXECUTE format('INSERT INTO %s (%s) SELECT %s FROM %s ORDER BY %s', divided, columns, columns, old,
                       CASE item.relname WHEN 'log_tiles' THEN 'shard, level, index' ELSE 'shard, seq' END);
        EXECUTE format('DROP TABLE %s', old);
    END LOOP;

    FOR view IN SELECT * FROM jsonb_to_recordset(views) AS one(name text, height integer, body text) ORDER BY height LOOP
        EXECUTE format('CREATE VIEW %s AS %s', view.name, view.body);
    END LOOP;
END $$;

-- Room for a log that begins, so that its first transaction need not make any.
SELECT apc_guard.open_segments(0, 1, 65536) WHERE NOT EXISTS (SELECT FROM apc_log.shards);

-- What readers see: a segment is sealed when it is full.
CREATE VIEW apc_log.segments AS
SELECT shard, first_seq, last_seq,
       CASE WHEN state = 'open' AND last_seq < (SELECT next_seq FROM apc_log.shards WHERE shards.shard = segments.shard)
            THEN 'sealed' ELSE state END AS state,
       record_seq, root, manifest
FROM apc_guard.segments;

REVOKE ALL ON FUNCTION apc_guard.attach(regclass, regclass, text), apc_guard.make_part(text, regclass, text),
    apc_guard.open_segment(integer, bigint, bigint), apc_guard.open_segments(integer, integer, bigint) FROM PUBLIC;
DO $$
BEGIN
    GRANT SELECT ON apc_guard.segments TO apc_owner, apc_reader, apc_writer;
    GRANT EXECUTE ON FUNCTION apc_guard.open_segments(integer, integer, bigint) TO apc_writer, apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

-- Segments of the log age (ADR 26): what stands in the archive is recorded by an entry, and its rows are let go of. The guard
-- cannot look into the archive: it sees to it that nothing goes before a signed and exported checkpoint vouches for the record.
SELECT apc_guard.maintain('segments that are in the archive can be let go of');

-- What stays in the database whatever its age: a session, a run, or what a contract judged.
CREATE TABLE apc_guard.holds (
    hold_id uuid PRIMARY KEY,
    session_id text,
    run_id text,
    contract_hash bytea,
    reason text NOT NULL,
    actor text NOT NULL,
    since timestamptz NOT NULL,
    until timestamptz,
    lifted_at timestamptz,
    CHECK (num_nonnulls(session_id, run_id, contract_hash) = 1)
);
CREATE VIEW apc_log.holds AS
SELECT hold_id, session_id, run_id, contract_hash, reason, actor, since, until, lifted_at,
       lifted_at IS NULL AND (until IS NULL OR until > now()) AS is_in_force
FROM apc_guard.holds;

-- An entry of one shard, under the lock on its head; as record() (0107_guard.sql), whose owner it gets.
CREATE FUNCTION apc_guard.record_in(in_shard integer, kind text, detail jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    head record;
BEGIN
    SELECT next_seq, epoch, batch_no INTO STRICT head FROM apc_log.shards WHERE shard = in_shard FOR UPDATE;
    INSERT INTO apc_log.log_events (shard, seq, epoch, batch_no, kind, actor, detail)
    VALUES (in_shard, head.next_seq, head.epoch, head.batch_no, record_in.kind, session_user, record_in.detail);
    UPDATE apc_log.shards SET next_seq = head.next_seq + 1 WHERE shard = in_shard;
    RETURN head.next_seq;
END $$;

-- The root over hashes of 32 bytes each, one behind the other: MTH of RFC 6962, whose odd last one goes up as it is.
CREATE FUNCTION apc_guard.fold(hashes bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    row bytea := hashes;
    above bytea;
BEGIN
    IF length(hashes) % 32 <> 0 THEN
        RAISE EXCEPTION '% bytes are not hashes of 32 bytes each', length(hashes) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    WHILE length(row) > 32 LOOP
        SELECT string_agg(CASE WHEN length(pair) = 64 THEN sha256('\x01' || pair) ELSE pair END, '' ORDER BY at) INTO above
        FROM generate_series(1, length(row), 64) AS at CROSS JOIN LATERAL substr(row, at, 64) AS pair;
        row := above;
    END LOOP;
    RETURN row;
END $$;

-- The root of a segment by the stored tiles over blocks of 2^16 entries; null where one is missing.
CREATE FUNCTION apc_guard.segment_root(in_shard integer, first bigint, last bigint) RETURNS bytea
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN count(*) = (last - first + 1) / 65536 THEN
        apc_guard.fold(string_agg(apc_guard.fold(hashes), '' ORDER BY index)) END
    FROM apc_log.log_tiles
    WHERE shard = in_shard AND level = 1 AND index BETWEEN (first - 1) / 65536 AND last / 65536 - 1
$$;

-- Records that a full segment is in the archive: its root must be that of the tree. Returns the number of the entry.
CREATE FUNCTION apc_guard.record_segment(in_shard integer, first bigint, found_root bytea, manifest_sha256 text, summary jsonb)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    segment record;
    recorded bigint;
BEGIN
    SELECT * INTO segment FROM apc_guard.segments WHERE shard = in_shard AND first_seq = first FOR UPDATE;
    IF NOT FOUND OR segment.last_seq >= (SELECT next_seq FROM apc_log.shards WHERE shard = in_shard) THEN
        RAISE EXCEPTION 'shard % has no full segment from entry %', in_shard, first USING ERRCODE = 'invalid_parameter_value';
    ELSIF segment.state <> 'open' THEN
        RETURN segment.record_seq;
    ELSIF (manifest_sha256 ~ '^[0-9a-f]{64}$' AND jsonb_typeof(summary) = 'object' AND octet_length(summary::text) <= 65536
           AND (summary -> 'bytes' IS NULL OR summary ->> 'bytes' ~ '^[0-9]{1,18}$')) IS NOT TRUE THEN
        RAISE EXCEPTION 'a segment is recorded with the SHA-256 of its manifest and a summary' USING ERRCODE = 'invalid_parameter_value';
    ELSIF found_root IS DISTINCT FROM apc_guard.segment_root(in_shard, first, segment.last_seq) THEN
        RAISE EXCEPTION 'the root of the segment from entry % of shard % is not that of the tree', first, in_shard
            USING ERRCODE = 'data_exception';
    END IF;
    recorded := apc_guard.record_in(in_shard, 'segment', jsonb_build_object(
        'first_seq', first, 'last_seq', segment.last_seq, 'root', encode(found_root, 'hex'), 'manifest', manifest_sha256,
        'summary', summary));
    UPDATE apc_guard.segments SET state = 'recorded', record_seq = recorded, root = found_root,
           manifest = summary || jsonb_build_object('sha256', manifest_sha256)
    WHERE shard = in_shard AND first_seq = first;
    RETURN recorded;
END $$;

-- Which sessions stay: those that are open and may have entries up to the last of a segment, and those that a hold names.
CREATE FUNCTION apc_guard.staying(in_shard integer, last bigint) RETURNS SETOF text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT session_id FROM apc_log.sessions
    WHERE shard = in_shard AND is_open AND coalesce(first_seq, 0) <= last
    UNION
    SELECT session_id FROM apc_log.holds WHERE is_in_force AND session_id IS NOT NULL
    UNION
    SELECT session.session_id FROM apc_log.holds JOIN apc_log.sessions AS session USING (run_id) WHERE is_in_force
$$;
-- The contracts whose sessions stay: those given, and those that a hold names.
CREATE FUNCTION apc_guard.staying_contracts(given bytea[]) RETURNS bytea[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT given || ARRAY(SELECT contract_hash FROM apc_log.holds WHERE is_in_force AND contract_hash IS NOT NULL)
$$;

-- Why a segment cannot be let go of now; null when it can.
CREATE FUNCTION apc_guard.release_problem(in_shard integer, first bigint) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE
        WHEN segment.shard IS NULL THEN 'there is no such segment'
        WHEN segment.state <> 'recorded' THEN 'it is ' || segment.state
        WHEN EXISTS (SELECT FROM apc_guard.segments AS earlier WHERE earlier.shard = in_shard
                     AND earlier.first_seq < first AND earlier.state NOT IN ('released', 'expired'))
        THEN 'an earlier segment stays'
        WHEN segment.record_seq > coalesce((SELECT max(tree_size) FROM apc_log.checkpoint_exports WHERE shard = in_shard), 0)
        THEN 'no exported checkpoint covers its record yet'
        WHEN EXISTS (SELECT FROM apc_log.followed WHERE shard = in_shard AND seq < segment.last_seq)
            OR NOT EXISTS (SELECT FROM apc_log.followed WHERE shard = in_shard)
            OR segment.last_seq > (SELECT bounded_seq FROM apc_log.shards WHERE shard = in_shard)
        THEN 'search and figures have not taken it in yet'
    END
    FROM (SELECT in_shard AS asked) AS one
    LEFT JOIN apc_guard.segments AS segment ON segment.shard = asked AND segment.first_seq = first
$$;

-- Begins an act of the guard itself, unless this is a maintenance; returns whether it did.
CREATE FUNCTION apc_guard.begin_act() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF apc_guard.in_maintenance() THEN
        RETURN false;
    END IF;
    INSERT INTO apc_guard.maintenance (actor, reason) VALUES ('', 'a segment is let go of');
    RETURN true;
END $$;
CREATE FUNCTION apc_guard.end_act() RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM apc_guard.maintenance WHERE transaction_id = pg_current_xact_id_if_assigned() AND actor = ''
$$;

-- Makes the tables that take a segment's place, with the rows that stay: those of sessions that do, and TRANSFERs, EVALs and
-- decisions about protocols with what is about them, of which sums and the gate's ledger are made. Tables of an earlier try go first. Tiles over leaves
-- stand in the archive. What they were made by stands with the segment. Returns how many packets stay.
CREATE FUNCTION apc_guard.build_thin(in_shard integer, first bigint, contracts bytea[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    problem constant text := apc_guard.release_problem(in_shard, first);
    last constant bigint := (SELECT last_seq FROM apc_guard.segments WHERE shard = in_shard AND first_seq = first);
    sessions text[];
    judging bytea[];
    item record;
    thin text;
    columns text;
    kept bigint;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'the segment from entry % of shard % stays: %', first, in_shard, problem
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM apc_guard.begin_act();
    UPDATE apc_guard.segments SET thin_sessions = ARRAY(SELECT apc_guard.staying(in_shard, last)),
           thin_contracts = apc_guard.staying_contracts(contracts)
    WHERE shard = in_shard AND first_seq = first
    RETURNING thin_sessions, thin_contracts INTO sessions, judging;
    CREATE TEMPORARY TABLE staying ON COMMIT DROP AS
    SELECT unnest(sessions) AS session_id UNION
    SELECT session_id FROM apc_log.agent_packets
    WHERE judging <> '{}' AND shard = in_shard AND seq BETWEEN first AND last AND contract_hash = ANY (judging);
    CREATE TEMPORARY TABLE counted ON COMMIT DROP AS
    SELECT session_id, packet_id FROM apc_log.agent_packets
    WHERE shard = in_shard AND seq BETWEEN first AND last AND (packet_type IN ('TRANSFER', 'EVAL')
          OR packet_type = 'DECISION' AND sender_agent_id = 'orchestrator' AND facts ? 'decay');
    FOR item IN SELECT * FROM apc_guard.divided() WHERE relname <> 'log_tiles' LOOP
        thin := apc_guard.segment_name(item.relname, in_shard, first) || '_thin';
        PERFORM apc_guard.drop_table(thin);
        PERFORM apc_guard.make_part(thin, format('apc_log.%I', item.relname)::regclass, item.unique_columns);
        EXECUTE format('ALTER TABLE apc_log.%I ADD CONSTRAINT within_segment CHECK (shard = %s AND seq >= %s AND seq < %s)',
                       thin, in_shard, first, last + 1); -- so that nobody waits until it is attached
        SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) INTO columns FROM pg_attribute
        WHERE attrelid = format('apc_log.%I', thin)::regclass AND attnum > 0 AND attgenerated = '';
        EXECUTE format('INSERT INTO apc_log.%I (%s) SELECT %s FROM apc_log.%I AS one WHERE shard = $1 AND seq BETWEEN $2 AND $3 AND (%s)',
                       thin, columns, columns, item.relname, CASE item.relname
            WHEN 'packet_search' THEN 'seq IN (SELECT packet.seq FROM apc_log.agent_packets AS packet
                WHERE packet.shard = $1 AND packet.seq BETWEEN $2 AND $3
                  AND packet.session_id IN (SELECT session_id FROM pg_temp.staying))'
            WHEN 'coordination_events' THEN 'session_id IN (SELECT session_id FROM pg_temp.staying)'
            ELSE 'session_id IN (SELECT session_id FROM pg_temp.staying)
                OR (session_id, packet_id) IN (SELECT session_id, packet_id FROM pg_temp.counted)' END)
        USING in_shard, first, last;
        EXECUTE format('ANALYZE apc_log.%I', thin);
    END LOOP;
    EXECUTE format('SELECT count(*) FROM apc_log.%I', apc_guard.segment_name('agent_packets', in_shard, first) || '_thin') INTO kept;
    DROP TABLE pg_temp.staying, pg_temp.counted;
    PERFORM apc_guard.end_act();
    RETURN kept;
END $$;

-- Drops a table of the log that no divided table has any more, in an act of the guard itself.
CREATE FUNCTION apc_guard.drop_table(relname text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone constant regclass := to_regclass(format('apc_log.%I', relname));
BEGIN
    IF gone IS NOT NULL AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = gone) THEN
        DELETE FROM apc_guard.log_tables WHERE name = gone;
        EXECUTE format('DROP TABLE %s', gone);
    END IF;
END $$;

-- Puts the thin tables in the place of the full ones, under the lock on the head, in one transaction, and records it. What
-- must stay by now and did not when they were made is an error: make them again. Who reads or writes the divided tables
-- waits while it waits for them: it gives up soon, and is tried again. Returns the number of the entry.
CREATE FUNCTION apc_guard.release(in_shard integer, first bigint, contracts bytea[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    segment record;
    problem text;
    later text[];
    item record;
    divided regclass;
    part text;
    has_rows boolean;
    recorded bigint;
BEGIN
    PERFORM set_config('lock_timeout', '10s', true);
    PERFORM FROM apc_log.followed WHERE shard = in_shard ORDER BY projection FOR UPDATE; -- their pieces read for seconds
    PERFORM FROM apc_log.shards WHERE shard = in_shard FOR UPDATE;
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE (SELECT format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', string_agg(format('apc_log.%I', relname), ', '))
             FROM apc_guard.divided() AS one);
    SELECT * INTO segment FROM apc_guard.segments WHERE shard = in_shard AND first_seq = first;
    problem := apc_guard.release_problem(in_shard, first);
    IF problem IS NULL AND segment.thin_sessions IS NULL THEN
        problem := 'its thin tables are not made yet';
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'the segment from entry % of shard % stays: %', first, in_shard, problem
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    later := ARRAY(SELECT apc_guard.staying(in_shard, segment.last_seq) EXCEPT SELECT unnest(segment.thin_sessions));
    FOR item IN SELECT * FROM apc_guard.divided() WHERE later <> '{}' AND relname NOT IN ('packet_search', 'log_tiles') LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM apc_log.%I AS entry WHERE session_id = ANY ($1)
            AND NOT EXISTS (SELECT FROM apc_log.%I AS kept WHERE kept.seq = entry.seq))',
            apc_guard.segment_name(item.relname, in_shard, first), apc_guard.segment_name(item.relname, in_shard, first) || '_thin')
        INTO has_rows USING later;
        EXIT WHEN has_rows;
    END LOOP;
    IF has_rows OR NOT apc_guard.staying_contracts(contracts) <@ segment.thin_contracts THEN
        RAISE EXCEPTION 'more of the segment from entry % of shard % has to stay than was made: make it again', first, in_shard
            USING ERRCODE = 'serialization_failure';
    END IF;
    PERFORM apc_guard.begin_act();
    FOR item IN SELECT * FROM apc_guard.divided() LOOP
        divided := format('apc_log.%I', item.relname)::regclass;
        part := apc_guard.segment_name(item.relname, in_shard, first);
        UPDATE apc_guard.log_tables SET part_of = NULL, bounds = NULL WHERE relname = part;
        EXECUTE format('ALTER TABLE %s DETACH PARTITION apc_log.%I', divided, part);
        CONTINUE WHEN item.relname = 'log_tiles';
        EXECUTE format('SELECT EXISTS (SELECT FROM apc_log.%I)', part || '_thin') INTO has_rows;
        IF NOT has_rows THEN
            PERFORM apc_guard.drop_table(part || '_thin');
        ELSE
            PERFORM apc_guard.attach(format('apc_log.%I', part || '_thin')::regclass, divided,
                                     apc_guard.segment_bounds(item.relname, in_shard, first, segment.last_seq));
            EXECUTE format('ALTER TABLE apc_log.%I DROP CONSTRAINT within_segment', part || '_thin');
        END IF;
    END LOOP;
    recorded := apc_guard.record_in(in_shard, 'release', jsonb_build_object('first_seq', first, 'last_seq', segment.last_seq));
    UPDATE apc_guard.segments SET state = 'released', thin_sessions = NULL, thin_contracts = NULL WHERE shard = in_shard AND first_seq = first;
    PERFORM apc_guard.end_act();
    RETURN recorded;
END $$;

-- Drops what a release has detached; can be repeated.
CREATE FUNCTION apc_guard.drop_released(in_shard integer, first bigint) RETURNS void
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
END $$;

-- Records that the rows of a released segment may go from the archive; its leaves, manifest and checkpoints never do.
CREATE FUNCTION apc_guard.expire(in_shard integer, first bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last bigint;
    kept bigint;
    held bigint;
BEGIN
    SELECT last_seq INTO last FROM apc_guard.segments
    WHERE shard = in_shard AND first_seq = first AND state = 'released' FOR UPDATE;
    SELECT count(*) INTO kept FROM apc_log.agent_packets
    WHERE shard = in_shard AND seq BETWEEN first AND last AND (session_id IN (SELECT apc_guard.staying(in_shard, last))
          OR contract_hash = ANY (apc_guard.staying_contracts('{}')));
    -- One that was made after the release may name what the archive alone has: of a contract nobody can tell here.
    SELECT count(*) INTO held FROM apc_log.holds AS hold WHERE is_in_force AND (
        NOT EXISTS (SELECT FROM apc_log.sessions WHERE session_id = hold.session_id OR run_id = hold.run_id)
        OR EXISTS (SELECT FROM apc_log.sessions AS session
                   WHERE (session.session_id = hold.session_id OR session.run_id = hold.run_id)
                     AND (coalesce(first_seq, 0) = 0 OR shard = in_shard AND first_seq <= last AND last_seq >= first)));
    IF last IS NULL OR kept > 0 OR held > 0 THEN
        RAISE EXCEPTION 'the segment from entry % of shard % cannot expire: %', first, in_shard, CASE
            WHEN last IS NULL THEN 'it is not released'
            WHEN kept > 0 THEN format('%s of its packets have to stay', kept)
            ELSE format('%s in force may name what the archive has of it', CASE held WHEN 1 THEN '1 hold' ELSE held || ' holds' END) END
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    UPDATE apc_guard.segments SET state = 'expired' WHERE shard = in_shard AND first_seq = first;
    RETURN apc_guard.record_in(in_shard, 'expire', jsonb_build_object('first_seq', first, 'last_seq', last));
END $$;

-- Holds: an entry of every shard tells of each, and of its end. One hold has the same id in each database of a log.
CREATE FUNCTION apc_guard.hold(
    session text, run text, contract bytea, reason text, until timestamptz, id uuid DEFAULT gen_random_uuid()
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF num_nonnulls(session, run, contract) <> 1 OR reason IS NULL OR length(reason) NOT BETWEEN 1 AND 300
       OR length(coalesce(session, run, '')) > 256 OR until <= clock_timestamp() THEN
        RAISE EXCEPTION 'a hold names a session, a run or a contract, with a reason of 1 to 300 characters, and ends later than now'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO apc_guard.holds (hold_id, session_id, run_id, contract_hash, reason, actor, since, until)
    VALUES (id, session, run, contract, hold.reason, session_user, clock_timestamp(), hold.until);
    PERFORM apc_guard.record('hold', jsonb_strip_nulls(jsonb_build_object(
        'id', id::text, 'session_id', session, 'run_id', run, 'contract_hash', encode(contract, 'hex'), 'reason', reason,
        'until', to_char(until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))));
    RETURN id;
END $$;
CREATE FUNCTION apc_guard.lift_hold(id uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE apc_guard.holds SET lifted_at = clock_timestamp() WHERE hold_id = id AND lifted_at IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no hold % is in force', id USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM apc_guard.record('hold', jsonb_build_object('id', id::text, 'lifted', true));
END $$;

REVOKE ALL ON FUNCTION apc_guard.record_in(integer, text, jsonb), apc_guard.fold(bytea), apc_guard.segment_root(integer, bigint, bigint),
    apc_guard.record_segment(integer, bigint, bytea, text, jsonb), apc_guard.staying(integer, bigint),
    apc_guard.staying_contracts(bytea[]),
    apc_guard.release_problem(integer, bigint), apc_guard.begin_act(), apc_guard.end_act(),
    apc_guard.build_thin(integer, bigint, bytea[]), apc_guard.drop_table(text), apc_guard.release(integer, bigint, bytea[]),
    apc_guard.drop_released(integer, bigint), apc_guard.expire(integer, bigint),
    apc_guard.hold(text, text, bytea, text, timestamptz, uuid), apc_guard.lift_hold(uuid) FROM PUBLIC;

-- Who archives does what the guard allows, and nothing else; he reads as a member of apc_reader.
DO $$
BEGIN
    IF to_regrole('apc_archiver') IS NULL THEN
        CREATE ROLE apc_archiver NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role apc_archiver was not created (%): an administrator makes it', SQLERRM;
END $$;
DO $$
BEGIN
    GRANT USAGE ON SCHEMA apc_log, apc_guard TO apc_archiver;
    GRANT SELECT ON apc_guard.holds TO apc_owner, apc_reader, apc_writer;
    GRANT EXECUTE ON FUNCTION apc_guard.fold(bytea), apc_guard.segment_root(integer, bigint, bigint) TO apc_owner, apc_reader, apc_writer;
    GRANT EXECUTE ON FUNCTION apc_guard.record_segment(integer, bigint, bytea, text, jsonb), apc_guard.release_problem(integer, bigint),
        apc_guard.build_thin(integer, bigint, bytea[]), apc_guard.release(integer, bigint, bytea[]), apc_guard.drop_released(integer, bigint),
        apc_guard.expire(integer, bigint), apc_guard.hold(text, text, bytea, text, timestamptz, uuid), apc_guard.lift_hold(uuid)
        TO apc_archiver;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;
DO $$
BEGIN
    ALTER FUNCTION apc_guard.record_in(integer, text, jsonb) OWNER TO apc_recorder;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'log_events is recorded as % (%)', current_user, SQLERRM;
END $$;

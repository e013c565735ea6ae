-- Shards may be in several databases (ADR 27): each knows its name and which shards are its own, and takes no other.
SELECT apc_guard.maintain('shards may be in several databases');

-- What this database is called in APC_DATABASES: `home` has the registry and every shard that was given to no other.
CREATE TABLE apc_guard.database_name (
    name text NOT NULL CHECK (name ~ '^[a-z][a-z0-9_]{0,30}$'),
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only)
);
INSERT INTO apc_guard.database_name (name) VALUES ('home');

-- The shards that differ from the rule, by which home has all of them and every other database none. Which orchestrator and
-- which database a process takes is told by shard_places, which log writers may write: what is refused is decided here.
CREATE TABLE apc_guard.shards_here (
    shard integer PRIMARY KEY CHECK (shard BETWEEN 0 AND 255),
    state text NOT NULL CHECK (state IN ('here', 'arriving', 'away'))
);

-- A head that has a name here is closed: the log goes on in that database. In the one where it arrives, until it has arrived.
ALTER TABLE apc_log.shards ADD COLUMN moved_to text;

CREATE FUNCTION apc_guard.state_of(in_shard integer) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce((SELECT state FROM apc_guard.shards_here WHERE shard = in_shard),
                    (SELECT CASE name WHEN 'home' THEN 'here' ELSE 'away' END FROM apc_guard.database_name), 'here')
$$;

CREATE FUNCTION apc_guard.refuse_shard(in_shard integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'shard % is not in database %: it is %', in_shard,
        (SELECT name FROM apc_guard.database_name), apc_guard.state_of(in_shard)
        USING ERRCODE = 'object_not_in_prerequisite_state', HINT = '`apc shard list` shows where each shard is';
END $$;

-- The fence: no head begins in a database that does not have the shard, and none moves on after it was closed.
CREATE FUNCTION apc_guard.fence_shard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    state text;
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.moved_to IS NULL AND NEW.moved_to IS NULL AND OLD.shard = NEW.shard THEN
        RETURN NEW; -- each transaction of a log writer
    END IF;
    state := apc_guard.state_of(NEW.shard);
    IF (state = 'here') <> (NEW.moved_to IS NULL) OR TG_OP = 'INSERT' AND state = 'away' THEN
        PERFORM apc_guard.refuse_shard(NEW.shard);
    ELSIF TG_OP = 'UPDATE' AND OLD.shard <> NEW.shard THEN
        PERFORM apc_guard.refuse_shard(NEW.shard);
    ELSIF TG_OP = 'UPDATE' AND state <> 'here' AND OLD.moved_to IS NOT NULL -- the ranges of its sessions may follow
          AND (OLD.epoch, OLD.holder, OLD.batch_no, OLD.next_seq, OLD.moved_to)
              IS DISTINCT FROM (NEW.epoch, NEW.holder, NEW.batch_no, NEW.next_seq, NEW.moved_to) THEN
        PERFORM apc_guard.refuse_shard(NEW.shard);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER fence_shard BEFORE INSERT OR UPDATE ON apc_log.shards
    FOR EACH ROW EXECUTE FUNCTION apc_guard.fence_shard();
ALTER TABLE apc_log.shards ENABLE ALWAYS TRIGGER fence_shard;
UPDATE apc_guard.log_tables SET is_fenced = true WHERE name = 'apc_log.shards'::regclass;

CREATE FUNCTION apc_guard.fence_segment() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF apc_guard.state_of(NEW.shard) = 'away' THEN
        PERFORM apc_guard.refuse_shard(NEW.shard);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER fence_segment BEFORE INSERT ON apc_guard.segments
    FOR EACH ROW EXECUTE FUNCTION apc_guard.fence_segment();
ALTER TABLE apc_guard.segments ENABLE ALWAYS TRIGGER fence_segment;

-- Gives a database that holds nothing yet its name.
CREATE FUNCTION apc_guard.name_database(wanted text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known constant text := (SELECT name FROM apc_guard.database_name);
BEGIN
    IF known = wanted THEN
        RETURN;
    END IF;
    LOCK TABLE apc_log.shards IN SHARE ROW EXCLUSIVE MODE;
    IF known <> 'home' OR EXISTS (SELECT FROM apc_log.shards) OR EXISTS (SELECT FROM apc_guard.shards_here) THEN
        RAISE EXCEPTION 'this database is % already has a name or shards: it cannot be %', known, wanted
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    UPDATE apc_guard.database_name SET name = wanted;
END $$;

-- Says whether a shard that has no entries yet is this database's. Waits for the transactions of log writers.
CREATE FUNCTION apc_guard.place_shard(in_shard integer, is_here boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted constant text := CASE WHEN is_here THEN 'here' ELSE 'away' END;
BEGIN
    LOCK TABLE apc_log.shards IN SHARE ROW EXCLUSIVE MODE;
    IF apc_guard.state_of(in_shard) = wanted THEN
        RETURN;
    ELSIF in_shard = 0 OR EXISTS (SELECT FROM apc_log.shards WHERE shard = in_shard) THEN
        RAISE EXCEPTION 'shard % %', in_shard, CASE in_shard WHEN 0 THEN 'stays at home' ELSE 'has entries here' END
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    INSERT INTO apc_guard.shards_here (shard, state) VALUES (in_shard, wanted)
    ON CONFLICT (shard) DO UPDATE SET state = excluded.state;
END $$;

-- A move of a filled shard (apc_persister.database.several): each step can be repeated, and nothing is written in between.
--
-- Closes the log of a shard here, with an entry that says where it goes on. Returns the number of that entry.
CREATE FUNCTION apc_guard.close_shard(in_shard integer, target text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    head record;
    here constant text := (SELECT name FROM apc_guard.database_name);
    recorded bigint;
BEGIN
    SELECT * INTO head FROM apc_log.shards WHERE shard = in_shard FOR UPDATE;
    IF head.moved_to = target AND apc_guard.state_of(in_shard) = 'away' THEN
        RETURN head.next_seq - 1;
    ELSIF head.shard IS NULL OR in_shard = 0 OR target = here OR apc_guard.state_of(in_shard) <> 'here' THEN
        RAISE EXCEPTION 'shard % cannot leave % for %: %', in_shard, here, target, CASE
            WHEN head.shard IS NULL THEN 'it has no entries' WHEN in_shard = 0 THEN 'it stays at home'
            ELSE 'it is ' || apc_guard.state_of(in_shard) END
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    recorded := apc_guard.record_in(in_shard, 'moved', jsonb_build_object('from', here, 'to', target, 'epoch', head.epoch,
                                                                        'batch_no', head.batch_no));
    INSERT INTO apc_guard.shards_here (shard, state) VALUES (in_shard, 'away')
    ON CONFLICT (shard) DO UPDATE SET state = 'away';
    UPDATE apc_log.shards SET moved_to = target WHERE shard = in_shard;
    RETURN recorded;
END $$;

-- Lets a shard arrive here that was closed elsewhere. One that was here before does not come back: its rows cannot go.
CREATE FUNCTION apc_guard.expect_shard(in_shard integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF apc_guard.state_of(in_shard) = 'away' THEN
        LOCK TABLE apc_log.shards IN SHARE ROW EXCLUSIVE MODE;
        IF EXISTS (SELECT FROM apc_log.shards WHERE shard = in_shard) THEN
            RAISE EXCEPTION 'shard % was here before, and its entries still are', in_shard
                USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
        INSERT INTO apc_guard.shards_here (shard, state) VALUES (in_shard, 'arriving')
        ON CONFLICT (shard) DO UPDATE SET state = 'arriving';
    END IF;
END $$;

CREATE FUNCTION apc_guard.check_arriving(in_shard integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF apc_guard.state_of(in_shard) <> 'arriving' THEN
        PERFORM apc_guard.refuse_shard(in_shard);
    END IF;
END $$;

-- Makes a segment as the database that the shard comes from has it. What was let go of there has no tiles over leaves here.
CREATE FUNCTION apc_guard.adopt_segment(segment jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given constant apc_guard.segments := jsonb_populate_record(NULL::apc_guard.segments, segment);
    tiles constant text := apc_guard.segment_name('log_tiles', given.shard, given.first_seq);
BEGIN
    PERFORM apc_guard.check_arriving(given.shard);
    PERFORM apc_guard.begin_act();
    PERFORM apc_guard.open_segment(given.shard, given.first_seq, given.last_seq);
    UPDATE apc_guard.segments SET state = given.state, record_seq = given.record_seq, root = given.root,
           manifest = given.manifest, had_names = given.had_names
    WHERE shard = given.shard AND first_seq = given.first_seq;
    IF given.state IN ('released', 'expired') THEN
        UPDATE apc_guard.log_tables SET part_of = NULL, bounds = NULL WHERE relname = tiles;
        EXECUTE format('ALTER TABLE apc_log.log_tiles DETACH PARTITION apc_log.%I', tiles);
        PERFORM apc_guard.drop_table(tiles);
    END IF;
    PERFORM apc_guard.end_act();
END $$;

-- Takes the entries that the guard of the other database recorded. Its owner is that of record().
CREATE FUNCTION apc_guard.adopt_events(in_shard integer, events jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM apc_guard.check_arriving(in_shard);
    INSERT INTO apc_log.log_events SELECT * FROM jsonb_populate_recordset(NULL::apc_log.log_events, events) AS one
    WHERE one.shard = in_shard;
END $$;

-- Takes a hold of another database of the log: the shards that it names rows of may be here from now on. An id that holds
-- something else here is refused, or the hold would be lost without a word.
CREATE FUNCTION apc_guard.adopt_hold(hold jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given constant apc_guard.holds := jsonb_populate_record(NULL::apc_guard.holds, hold);
BEGIN
    INSERT INTO apc_guard.holds SELECT given.* ON CONFLICT (hold_id) DO NOTHING;
    IF NOT EXISTS (SELECT FROM apc_guard.holds AS here WHERE here.hold_id = given.hold_id
                   AND (here.session_id, here.run_id, here.contract_hash)
                       IS NOT DISTINCT FROM (given.session_id, given.run_id, given.contract_hash)) THEN
        RAISE EXCEPTION 'hold % names something else in database %', given.hold_id,
            (SELECT name FROM apc_guard.database_name) USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END $$;

-- Lets the log of a shard that has arrived go on here.
CREATE FUNCTION apc_guard.open_shard(in_shard integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF apc_guard.state_of(in_shard) = 'here' THEN
        RETURN;
    END IF;
    PERFORM apc_guard.check_arriving(in_shard);
    PERFORM FROM apc_log.shards WHERE shard = in_shard FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'shard % has not arrived yet', in_shard USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    UPDATE apc_guard.shards_here SET state = 'here' WHERE shard = in_shard;
    UPDATE apc_log.shards SET moved_to = NULL WHERE shard = in_shard;
END $$;

-- Takes a shard that has left out of the counts beside the log: the database that has it now counts it. Runs that it was part
-- of are summed again without it.
CREATE FUNCTION apc_guard.forget_counts(in_shard integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    runs constant text[] := ARRAY(SELECT run_id FROM apc_log.run_changes WHERE shard = in_shard);
BEGIN
    IF apc_guard.state_of(in_shard) <> 'away' THEN
        PERFORM apc_guard.refuse_shard(in_shard);
    END IF;
    LOCK TABLE apc_log.protocol_sums, apc_log.summed_uses IN SHARE ROW EXCLUSIVE MODE; -- nobody sums meanwhile
    UPDATE apc_log.protocol_sums AS total SET
        tasks = total.tasks - former.tasks, evals = total.evals - former.evals,
        outcome_billionths = total.outcome_billionths - former.outcome_billionths,
        drift_evals = total.drift_evals - former.drift_evals, drift_billionths = total.drift_billionths - former.drift_billionths
    FROM (
        SELECT protocol_id, task_id, refusal_codes, count(*) AS tasks, sum(evals) AS evals,
               sum(outcome_billionths) AS outcome_billionths, sum(drift_evals) AS drift_evals,
               sum(drift_billionths) AS drift_billionths
        FROM apc_log.summed_uses WHERE run_id = ANY (runs) GROUP BY protocol_id, task_id, refusal_codes
    ) AS former
    WHERE total.protocol_id = former.protocol_id AND total.task_id = former.task_id
      AND total.refusal_codes = former.refusal_codes;
    DELETE FROM apc_log.summed_uses WHERE run_id = ANY (runs);
    DELETE FROM apc_log.run_changes WHERE shard = in_shard;
    UPDATE apc_log.run_changes SET summed_seq = NULL WHERE run_id = ANY (runs);
    DELETE FROM apc_log.transfer_rulings WHERE shard = in_shard;
    DELETE FROM apc_log.task_tallies WHERE shard = in_shard;
    DELETE FROM apc_log.protocol_tallies WHERE shard = in_shard;
    DELETE FROM apc_log.protocol_tasks WHERE shard = in_shard;
    DELETE FROM apc_log.protocol_runs WHERE shard = in_shard;
    DELETE FROM apc_log.run_cards AS card
    WHERE EXISTS (SELECT FROM apc_log.sessions WHERE run_id = card.run_id AND shard = in_shard)
      AND NOT EXISTS (SELECT FROM apc_log.sessions WHERE run_id = card.run_id AND shard <> in_shard);
END $$;

-- In home: where each shard is, null = in home, and the database that it is on its way to.
ALTER TABLE apc_log.shard_places ALTER COLUMN orchestrator DROP NOT NULL;
ALTER TABLE apc_log.shard_places
    ADD COLUMN database text CHECK (database ~ '^[a-z][a-z0-9_]{0,30}$' AND database <> 'home'),
    ADD COLUMN moving_to text CHECK (moving_to ~ '^[a-z][a-z0-9_]{0,30}$');
CREATE OR REPLACE FUNCTION apc_log.place_shard(in_shard integer, taker text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF taker IS NULL THEN
        DELETE FROM apc_log.shard_places WHERE shard = in_shard AND database IS NULL AND moving_to IS NULL;
        UPDATE apc_log.shard_places SET orchestrator = NULL WHERE shard = in_shard;
        RETURN;
    END IF;
    INSERT INTO apc_log.shard_places (shard, orchestrator, moved_at, moved_by)
    VALUES (in_shard, taker, clock_timestamp(), session_user)
    ON CONFLICT (shard) DO UPDATE SET orchestrator = excluded.orchestrator, moved_at = excluded.moved_at,
                                      moved_by = excluded.moved_by;
END $$;

REVOKE ALL ON FUNCTION apc_guard.state_of(integer), apc_guard.refuse_shard(integer), apc_guard.fence_shard(),
    apc_guard.fence_segment(), apc_guard.name_database(text), apc_guard.place_shard(integer, boolean),
    apc_guard.close_shard(integer, text), apc_guard.expect_shard(integer), apc_guard.check_arriving(integer),
    apc_guard.adopt_segment(jsonb), apc_guard.adopt_events(integer, jsonb), apc_guard.adopt_hold(jsonb),
    apc_guard.open_shard(integer), apc_guard.forget_counts(integer) FROM PUBLIC;
DO $$
BEGIN
    GRANT EXECUTE ON FUNCTION apc_guard.state_of(integer) TO apc_owner, apc_reader, apc_writer;
    GRANT SELECT ON apc_guard.database_name, apc_guard.shards_here TO apc_owner, apc_reader, apc_writer;
    GRANT EXECUTE ON FUNCTION apc_guard.name_database(text), apc_guard.place_shard(integer, boolean),
        apc_guard.close_shard(integer, text), apc_guard.expect_shard(integer), apc_guard.adopt_segment(jsonb),
        apc_guard.adopt_events(integer, jsonb), apc_guard.adopt_hold(jsonb), apc_guard.open_shard(integer),
        apc_guard.forget_counts(integer) TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;
DO $$
BEGIN
    GRANT EXECUTE ON FUNCTION apc_guard.check_arriving(integer) TO apc_recorder;
    ALTER FUNCTION apc_guard.adopt_events(integer, jsonb) OWNER TO apc_recorder;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'log_events is recorded as % (%)', current_user, SQLERRM;
END $$;

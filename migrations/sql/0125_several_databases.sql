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
    apc_guard.fence_segment(), apc_guard.name_database(text), apc_guard.place_shard(integer, boolean) FROM PUBLIC;
DO $$
BEGIN
    GRANT SELECT ON apc_guard.database_name, apc_guard.shards_here TO apc_owner, apc_reader, apc_writer;
    GRANT EXECUTE ON FUNCTION apc_guard.name_database(text), apc_guard.place_shard(integer, boolean) TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

-- Which orchestrator takes a shard: a row for each shard that `apc shard move` gave to one, beside the log. Who holds a
-- shard is fenced by its epoch whatever stands here: a row that is wrong costs pauses, and loses nothing.
SELECT apc_guard.maintain('which orchestrator takes a shard');

CREATE TABLE apc_log.shard_places (
    shard integer PRIMARY KEY CHECK (shard BETWEEN 0 AND 255),
    orchestrator text NOT NULL CHECK (orchestrator ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'),
    moved_at timestamptz NOT NULL,
    moved_by text NOT NULL
);
SELECT apc_guard.exempt('apc_log.shard_places');

-- The name of the orchestrator that took the epoch.
ALTER TABLE apc_log.shard_epochs ADD COLUMN orchestrator text;

-- Gives a shard to an orchestrator, null = to the first that comes; tells who did it by the login, not by what he says.
CREATE FUNCTION apc_log.place_shard(in_shard integer, taker text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF taker IS NULL THEN
        DELETE FROM apc_log.shard_places WHERE shard = in_shard;
        RETURN;
    END IF;
    INSERT INTO apc_log.shard_places (shard, orchestrator, moved_at, moved_by)
    VALUES (in_shard, taker, clock_timestamp(), session_user)
    ON CONFLICT (shard) DO UPDATE SET orchestrator = excluded.orchestrator, moved_at = excluded.moved_at,
                                      moved_by = excluded.moved_by;
END $$;
REVOKE ALL ON FUNCTION apc_log.place_shard(integer, text) FROM PUBLIC;

-- Who may move shards, and can do nothing else: the operator's login.
DO $$
BEGIN
    IF to_regrole('apc_mover') IS NULL THEN
        CREATE ROLE apc_mover NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role apc_mover was not created (%): an administrator makes it', SQLERRM;
END $$;

DO $$
BEGIN
    GRANT SELECT ON apc_log.shard_places TO apc_reader, apc_writer;
    GRANT USAGE ON SCHEMA apc_log TO apc_mover;
    GRANT EXECUTE ON FUNCTION apc_log.place_shard(integer, text) TO apc_mover;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

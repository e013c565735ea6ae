-- How a row is read as an entry of the Merkle tree (docs/reference/log-format.md): rows of before are version 1.
ALTER TABLE apc_log.agent_packets ADD COLUMN entry_version smallint NOT NULL DEFAULT 1;
ALTER TABLE apc_log.packet_events ADD COLUMN entry_version smallint NOT NULL DEFAULT 1;
ALTER TABLE apc_log.packet_lineage ADD COLUMN entry_version smallint NOT NULL DEFAULT 1;
ALTER TABLE apc_log.coordination_events ADD COLUMN entry_version smallint NOT NULL DEFAULT 1;
ALTER TABLE apc_log.packet_conflicts ADD COLUMN entry_version smallint NOT NULL DEFAULT 1;
ALTER TABLE apc_log.registry_events ADD COLUMN entry_version smallint NOT NULL DEFAULT 1;
ALTER TABLE apc_log.log_events ADD COLUMN entry_version smallint NOT NULL DEFAULT 1;

-- Leaf hashes are tiles of level 0: 32 bytes an entry, and `verify` can name the entry that does not fit.
ALTER TABLE apc_log.log_tiles DROP CONSTRAINT log_tiles_level_check;
ALTER TABLE apc_log.log_tiles ADD CONSTRAINT log_tiles_level_check CHECK (level >= 0);

-- The writer's edge of the tree: of every level the hashes of the tile that is not full. Follows from rows and tiles;
-- moved with them in one transaction. Not append-only.
CREATE TABLE apc_log.log_edges (
    shard integer PRIMARY KEY,
    tree_size bigint NOT NULL CHECK (tree_size >= 0),
    hashes bytea[] NOT NULL
);
SELECT apc_guard.exempt('apc_log.log_edges');
-- Hashes do not compress.
ALTER TABLE apc_log.log_edges ALTER COLUMN hashes SET STORAGE EXTERNAL;
ALTER TABLE apc_log.log_tiles ALTER COLUMN hashes SET STORAGE EXTERNAL;

-- Up to which checkpoint each place outside has been told. Not append-only.
CREATE TABLE apc_log.checkpoint_exports (
    shard integer NOT NULL,
    target text NOT NULL,
    tree_size bigint NOT NULL,
    exported_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (shard, target)
);
SELECT apc_guard.exempt('apc_log.checkpoint_exports');

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['apc_log.log_edges', 'apc_log.checkpoint_exports'] LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO apc_owner', name);
    END LOOP;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the log keeps the owner % (%)', current_user, SQLERRM;
END $$;

DO $$
BEGIN
    GRANT SELECT ON apc_log.log_edges, apc_log.checkpoint_exports TO apc_reader, apc_writer;
    GRANT INSERT, UPDATE ON apc_log.log_edges, apc_log.checkpoint_exports TO apc_writer;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

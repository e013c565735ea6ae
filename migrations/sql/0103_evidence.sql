-- What makes the log provable: its Merkle tree, the contracts it was judged by, and the keys of encrypted bodies.
-- Signed tree heads and full tiles; both are about entries, not entries themselves. Leaf hashes are tiles of level 0: 32 bytes
-- an entry, and `verify` can name the entry that does not fit.
CREATE TABLE apc_log.log_checkpoints (
    shard integer NOT NULL,
    tree_size bigint NOT NULL CHECK (tree_size >= 0),
    root_hash bytea NOT NULL CHECK (octet_length(root_hash) = 32),
    note text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (shard, tree_size)
);
CREATE TABLE apc_log.log_tiles (
    shard integer NOT NULL,
    level integer NOT NULL CHECK (level >= 0),
    index bigint NOT NULL CHECK (index >= 0),
    hashes bytea NOT NULL CHECK (octet_length(hashes) = 8192),
    recorded_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (shard, level, index)
);

-- The writer's edge of the tree: of every level the hashes of the tile that is not full. Follows from rows and tiles;
-- moved with them in one transaction. Not append-only.
CREATE TABLE apc_log.log_edges (
    shard integer PRIMARY KEY,
    tree_size bigint NOT NULL CHECK (tree_size >= 0),
    hashes bytea[] NOT NULL
);
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

-- The contract files that gates have judged by, each once: a verdict is recomputed from (bytes, facts, contract), and
-- every packet names its contract by hash.
CREATE TABLE apc_log.contracts (
    contract_hash bytea PRIMARY KEY,
    document bytea NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CHECK (contract_hash = sha256(document))
);

-- Keys of encrypted bodies, wrapped by a master key that no database holds. Outside apc_log: destroying a row is the
-- whole point (`apc log erase`).
CREATE SCHEMA apc_keys;
CREATE TABLE apc_keys.subject_keys (
    subject text PRIMARY KEY,
    key_id uuid NOT NULL UNIQUE,
    wrapped bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

DO $$
BEGIN
    ALTER TABLE apc_keys.subject_keys OWNER TO apc_owner;
    ALTER SCHEMA apc_keys OWNER TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the keys keep the owner % (%)', current_user, SQLERRM;
END $$;

DO $$
BEGIN
    GRANT USAGE ON SCHEMA apc_keys TO apc_writer, apc_reader;
    -- The gate reads them as apc_reader: without the master key they are worth nothing.
    GRANT SELECT ON apc_keys.subject_keys TO apc_writer, apc_reader;
    -- UPDATE of one column: PostgreSQL asks for it where a row is locked (FOR KEY SHARE).
    GRANT INSERT, UPDATE (created_at) ON apc_keys.subject_keys TO apc_writer;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

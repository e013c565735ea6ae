-- The contract files that gates have judged by, each once: a verdict is recomputed from (bytes, facts, contract), and
-- every packet names its contract by hash.
CREATE TABLE apc_log.contracts (
    contract_hash bytea PRIMARY KEY,
    document bytea NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CHECK (contract_hash = sha256(document))
);
SELECT apc_guard.register('apc_log.contracts');

DO $$
BEGIN
    ALTER TABLE apc_log.contracts OWNER TO apc_owner;
    GRANT SELECT ON apc_log.contracts TO apc_reader, apc_writer;
    GRANT INSERT ON apc_log.contracts TO apc_writer;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

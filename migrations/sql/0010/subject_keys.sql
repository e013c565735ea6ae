-- Keys of encrypted bodies, wrapped by a master key that no database holds. Outside apc_log: destroying a row is the
-- whole point (`apc log erase`).
CREATE SCHEMA apc_keys;
CREATE TABLE apc_keys.subject_keys (
    subject text PRIMARY KEY,
    key_id uuid NOT NULL UNIQUE,
    wrapped bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- A sealed body (00 'apc1' …, apc_log.body_encryption) has no jsonb.
CREATE OR REPLACE VIEW apc_log.packets AS
SELECT shard, seq, session_id, packet_id, packet_type, verdict, judged_at,
       CASE WHEN position('\x0061706331'::bytea IN substring(body_stored FROM 1 FOR 5)) = 0
            THEN convert_from(body_stored, 'UTF8')::jsonb END AS packet
FROM apc_log.agent_packets;

DO $$
BEGIN
    ALTER TABLE apc_keys.subject_keys OWNER TO apc_owner;
    ALTER SCHEMA apc_keys OWNER TO apc_owner;
    ALTER VIEW apc_log.packets OWNER TO apc_owner;
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

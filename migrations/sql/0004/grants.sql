-- apc_owner migrates: inside maintain(), which it may open and which every shard's log tells of.
REVOKE ALL ON FUNCTION apc_guard.protect(regclass), apc_guard.maintain(text), apc_guard.exempt(regclass),
    apc_guard.register(regclass), apc_guard.cover() FROM PUBLIC;
DO $$
BEGIN
    GRANT USAGE ON SCHEMA apc_guard TO apc_owner;
    GRANT SELECT ON ALL TABLES IN SCHEMA apc_guard TO apc_owner, apc_reader, apc_writer;
    GRANT INSERT, UPDATE, DELETE ON apc_guard.alembic_version TO apc_owner;
    GRANT EXECUTE ON FUNCTION apc_guard.protect(regclass), apc_guard.maintain(text), apc_guard.exempt(regclass),
        apc_guard.register(regclass), apc_guard.cover() TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

-- Everything in apc_log goes to apc_owner; the guard stays with the migrating user. A server that does not let us
-- hand over or grant leaves the log to triggers alone, and says so.
DO $$
DECLARE
    item record;
BEGIN
    FOR item IN
        SELECT format('%s %s', CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, oid::regclass) AS name
        FROM pg_class WHERE relnamespace = 'apc_log'::regnamespace AND relkind IN ('r', 'v')
        UNION ALL
        SELECT format('FUNCTION %s', oid::regprocedure) FROM pg_proc WHERE pronamespace = 'apc_log'::regnamespace
        UNION ALL
        SELECT 'SCHEMA apc_log'
    LOOP
        EXECUTE format('ALTER %s OWNER TO apc_owner', item.name);
    END LOOP;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the log keeps the owner % (%)', current_user, SQLERRM;
END $$;

DO $$
BEGIN
    GRANT USAGE ON SCHEMA apc_log TO apc_writer, apc_reader;
    GRANT USAGE ON SCHEMA apc_guard TO apc_reader, apc_writer;
    GRANT SELECT ON ALL TABLES IN SCHEMA apc_log, apc_guard TO apc_reader, apc_writer;
    GRANT INSERT ON ALL TABLES IN SCHEMA apc_log TO apc_writer;
    REVOKE INSERT ON apc_log.packets, apc_log.packet_transitions, apc_log.packet_recipient_state,
        apc_log.packet_state, apc_log.session_state FROM apc_writer;
    GRANT UPDATE ON apc_log.shards, apc_log.sessions, apc_log.agents TO apc_writer;
    GRANT USAGE ON SCHEMA apc_app TO apc_agent;
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA apc_app TO apc_agent;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

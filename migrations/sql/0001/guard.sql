-- Schema apc_guard belongs to the migrating user, the log to apc_owner: the log's owner cannot replace what guards it.
CREATE FUNCTION apc_guard.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION '%.% is append-only: % refused for %', TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_OP, session_user
        USING ERRCODE = 'insufficient_privilege', HINT = 'corrections are RETRACTION packets';
END $$;

-- ENABLE ALWAYS: the triggers fire under session_replication_role = replica too, for superusers as well.
CREATE FUNCTION apc_guard.protect(log_table regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    EXECUTE format(
        'CREATE TRIGGER refuse_row_change BEFORE UPDATE OR DELETE ON %s '
        'FOR EACH ROW EXECUTE FUNCTION apc_guard.refuse_change()', log_table);
    EXECUTE format(
        'CREATE TRIGGER refuse_statement BEFORE UPDATE OR DELETE OR TRUNCATE ON %s '
        'FOR EACH STATEMENT EXECUTE FUNCTION apc_guard.refuse_change()', log_table);
    EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER refuse_row_change', log_table);
    EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER refuse_statement', log_table);
END $$;
REVOKE ALL ON FUNCTION apc_guard.protect(regclass) FROM PUBLIC;

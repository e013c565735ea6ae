-- ENABLE ALWAYS: the triggers fire under session_replication_role = replica too, for superusers as well.
CREATE OR REPLACE FUNCTION apc_guard.protect(log_table regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    wanted record;
BEGIN
    FOR wanted IN
        SELECT * FROM (VALUES
            ('refuse_row_change', 'UPDATE OR DELETE', 'ROW'),
            ('refuse_statement', 'UPDATE OR DELETE OR TRUNCATE', 'STATEMENT')
        ) AS listed(name, events, level)
    LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER %s BEFORE %s ON %s FOR EACH %s EXECUTE FUNCTION '
                       'apc_guard.refuse_change()', wanted.name, wanted.events, log_table, wanted.level);
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %s', log_table, wanted.name);
    END LOOP;
END $$;

-- Everything that would let a row of the log change, whoever asks. Empty = the guard is whole.
CREATE OR REPLACE FUNCTION apc_guard.faults() RETURNS TABLE (log_table regclass, fault text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
    SELECT name, format('is not apc_log.%s any more', relname)
    FROM apc_guard.log_tables AS listed
    WHERE NOT EXISTS (
        SELECT FROM pg_class
        WHERE oid = listed.name AND relnamespace = to_regnamespace('apc_log') AND relname = listed.relname)
    UNION ALL
    SELECT oid::regclass, 'is not known to the guard'
    FROM pg_class
    WHERE relnamespace = to_regnamespace('apc_log') AND relkind IN ('r', 'p')
      AND oid NOT IN (SELECT name FROM apc_guard.log_tables)
    UNION ALL
    SELECT listed.name, 'lacks trigger ' || wanted.trigger_name || ', or it was altered or disabled'
    FROM apc_guard.log_tables AS listed
    -- tgtype: 1 row, 2 before, 8 delete, 16 update, 32 truncate (pg_trigger.h)
    CROSS JOIN (VALUES ('refuse_row_change', 1 + 2 + 8 + 16), ('refuse_statement', 2 + 8 + 16 + 32))
        AS wanted(trigger_name, type)
    WHERE listed.is_append_only AND NOT EXISTS (
        SELECT FROM pg_trigger
        WHERE tgrelid = listed.name AND tgname = wanted.trigger_name AND tgtype = wanted.type AND tgenabled = 'A'
          AND tgfoid = 'apc_guard.refuse_change()'::regprocedure AND tgqual IS NULL AND cardinality(tgattr) = 0)
    UNION ALL
    SELECT listed.name, 'has trigger ' || tgname || ', which is not the guard''s'
    FROM apc_guard.log_tables AS listed JOIN pg_trigger ON tgrelid = listed.name
    WHERE listed.is_append_only AND NOT tgisinternal AND tgname NOT IN ('refuse_row_change', 'refuse_statement')
    UNION ALL
    SELECT listed.name, 'has rule ' || rulename
    FROM apc_guard.log_tables AS listed JOIN pg_rewrite ON ev_class = listed.name
    WHERE listed.is_append_only
    UNION ALL
    SELECT listed.name, 'hides rows by row level security'
    FROM apc_guard.log_tables AS listed JOIN pg_class ON oid = listed.name
    WHERE listed.is_append_only AND relrowsecurity
    UNION ALL
    SELECT listed.name, 'shares rows with ' || inhrelid::regclass || ' by inheritance'
    FROM apc_guard.log_tables AS listed JOIN pg_inherits ON inhparent = listed.name
    WHERE listed.is_append_only AND inhrelid NOT IN (SELECT name FROM apc_guard.log_tables)
$$;

SELECT apc_guard.protect(name) FROM apc_guard.log_tables
WHERE is_append_only AND name IN (SELECT log_table FROM apc_guard.faults());

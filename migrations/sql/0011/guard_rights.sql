-- Code of the log's owner must never run with the rights of the guard's. maintain() wrote the heads and log_events as
-- superuser: a constraint, default or index expression that the owner had put there would have run so. And with
-- search_path = pg_catalog alone a temporary table is looked at before the catalog: the guard could be shown another.

-- As before, and no trigger or rule of others on a projection either: they would run with the rights of whoever
-- writes it.
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
    WHERE NOT tgisinternal AND tgname NOT IN ('refuse_row_change', 'refuse_statement')
    UNION ALL
    SELECT listed.name, 'has rule ' || rulename
    FROM apc_guard.log_tables AS listed JOIN pg_rewrite ON ev_class = listed.name
    UNION ALL
    SELECT listed.name, 'hides rows by row level security'
    FROM apc_guard.log_tables AS listed JOIN pg_class ON oid = listed.name
    WHERE listed.is_append_only AND relrowsecurity
    UNION ALL
    SELECT listed.name, 'shares rows with ' || inhrelid::regclass || ' by inheritance'
    FROM apc_guard.log_tables AS listed JOIN pg_inherits ON inhparent = listed.name
    WHERE listed.is_append_only AND inhrelid NOT IN (SELECT name FROM apc_guard.log_tables)
$$;

CREATE OR REPLACE FUNCTION apc_guard.record_maintenance(reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    head record;
BEGIN
    FOR head IN SELECT * FROM apc_log.shards ORDER BY shard FOR UPDATE LOOP
        INSERT INTO apc_log.log_events (shard, seq, epoch, batch_no, kind, actor, detail)
        VALUES (head.shard, head.next_seq, head.epoch, head.batch_no, 'maintenance', session_user,
                jsonb_build_object('reason', record_maintenance.reason));
        UPDATE apc_log.shards SET next_seq = head.next_seq + 1 WHERE shard = head.shard;
    END LOOP;
END $$;
REVOKE ALL ON FUNCTION apc_guard.record_maintenance(text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION apc_guard.maintain(reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF apc_guard.in_maintenance() THEN
        RETURN;
    END IF;
    INSERT INTO apc_guard.maintenance (actor, reason) VALUES (session_user, maintain.reason);
    PERFORM apc_guard.record_maintenance(maintain.reason);
END $$;

DO $$
DECLARE
    item record;
BEGIN
    FOR item IN SELECT oid::regprocedure AS name FROM pg_proc WHERE pronamespace = 'apc_guard'::regnamespace LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', item.name);
    END LOOP;
END $$;

DO $$
BEGIN
    ALTER FUNCTION apc_guard.record_maintenance(text) OWNER TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'maintenance is recorded as % (%)', current_user, SQLERRM;
END $$;

CREATE OR REPLACE FUNCTION apc_guard.in_maintenance() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
    SELECT EXISTS (
        SELECT FROM apc_guard.maintenance WHERE transaction_id = pg_current_xact_id_if_assigned())
$$;

-- Lets this transaction change the schema of the log, and writes so into every shard's log. What it does not let:
-- guards go, columns or tables of the log go, stored rows be rewritten. Locks the heads of all shards, in order: the
-- writers wait, and then go on behind the entry.
CREATE OR REPLACE FUNCTION apc_guard.maintain(reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    head record;
BEGIN
    IF apc_guard.in_maintenance() THEN
        RETURN;
    END IF;
    INSERT INTO apc_guard.maintenance (actor, reason) VALUES (session_user, maintain.reason);
    FOR head IN SELECT * FROM apc_log.shards ORDER BY shard FOR UPDATE LOOP
        INSERT INTO apc_log.log_events (shard, seq, epoch, batch_no, kind, actor, detail)
        VALUES (head.shard, head.next_seq, head.epoch, head.batch_no, 'maintenance', session_user,
                jsonb_build_object('reason', maintain.reason));
        UPDATE apc_log.shards SET next_seq = head.next_seq + 1 WHERE shard = head.shard;
    END LOOP;
END $$;

-- At COMMIT: the guard must be whole, then the maintenance is over.
CREATE OR REPLACE FUNCTION apc_guard.end_maintenance() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    hole record;
BEGIN
    SELECT * INTO hole FROM apc_guard.faults() LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the maintenance left a hole: % %', hole.log_table, hole.fault
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'SELECT apc_guard.protect(table), or declare a projection with apc_guard.exempt(table)';
    END IF;
    UPDATE apc_guard.log_tables SET new_in = NULL WHERE new_in IS NOT NULL;
    DELETE FROM apc_guard.maintenance WHERE transaction_id = NEW.transaction_id;
    RETURN NULL;
END $$;
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'apc_guard.maintenance'::regclass
                   AND tgname = 'end_maintenance') THEN
        CREATE CONSTRAINT TRIGGER end_maintenance AFTER INSERT ON apc_guard.maintenance
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION apc_guard.end_maintenance();
    END IF;
END $$;
ALTER TABLE apc_guard.maintenance ENABLE ALWAYS TRIGGER end_maintenance;

-- Declares a table that this maintenance has made to be a projection beside the log: its rows may change.
CREATE OR REPLACE FUNCTION apc_guard.exempt(projection regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    here constant xid8 := pg_current_xact_id();
BEGIN
    IF NOT apc_guard.in_maintenance()
       OR EXISTS (SELECT FROM apc_guard.log_tables WHERE name = projection AND new_in IS DISTINCT FROM here) THEN
        RAISE EXCEPTION '% is part of the log and stays append-only', projection
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'only the migration that creates a table may declare it a projection';
    END IF;
    -- First the registry: the triggers of a table of the log cannot be dropped.
    INSERT INTO apc_guard.log_tables (name, relname, is_append_only, new_in)
    SELECT oid, relname, false, here FROM pg_class WHERE oid = projection
    ON CONFLICT (name) DO UPDATE SET is_append_only = false;
    EXECUTE format('DROP TRIGGER IF EXISTS refuse_row_change ON %s', projection);
    EXECUTE format('DROP TRIGGER IF EXISTS refuse_statement ON %s', projection);
END $$;

-- Takes a table of apc_log under the guard. A tightening: whoever may call it may do so at any time.
CREATE OR REPLACE FUNCTION apc_guard.register(log_table regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    -- Listed before its triggers are made: they are DDL, which the freeze looks at.
    INSERT INTO apc_guard.log_tables (name, relname, is_append_only, new_in)
    SELECT oid, relname, false, pg_current_xact_id() FROM pg_class WHERE oid = log_table
    ON CONFLICT (name) DO NOTHING;
    IF FOUND THEN
        PERFORM apc_guard.protect(log_table);
        UPDATE apc_guard.log_tables SET is_append_only = true WHERE name = log_table;
    END IF;
END $$;

-- After each migration: every table of apc_log is guarded, belongs to apc_owner, and can be read and extended by those
-- who should. By the catalog, so that a migration need not remember it. Runs with the rights of its caller.
CREATE OR REPLACE FUNCTION apc_guard.cover() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    item record;
BEGIN
    FOR item IN
        SELECT oid::regclass AS name FROM pg_class
        WHERE relnamespace = 'apc_log'::regnamespace AND relkind IN ('r', 'p')
          AND oid NOT IN (SELECT name FROM apc_guard.log_tables)
    LOOP
        PERFORM apc_guard.register(item.name);
    END LOOP;
    IF to_regrole('apc_owner') IS NULL THEN
        RETURN;
    END IF;
    FOR item IN
        SELECT format('%s %s', CASE relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'TABLE' END,
                      oid::regclass) AS name
        FROM pg_class WHERE relnamespace = 'apc_log'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
          AND relowner <> 'apc_owner'::regrole
        UNION ALL
        SELECT format('ROUTINE %s', oid::regprocedure) FROM pg_proc
        WHERE pronamespace = 'apc_log'::regnamespace AND proowner <> 'apc_owner'::regrole
        UNION ALL
        SELECT 'SCHEMA apc_log' FROM pg_namespace
        WHERE oid = 'apc_log'::regnamespace AND nspowner <> 'apc_owner'::regrole
    LOOP
        EXECUTE format('ALTER %s OWNER TO apc_owner', item.name);
    END LOOP;
    GRANT SELECT ON ALL TABLES IN SCHEMA apc_log TO apc_reader, apc_writer;
    FOR item IN
        SELECT oid::regclass AS name, is_append_only FROM apc_guard.log_tables JOIN pg_class ON oid = name
    LOOP
        EXECUTE format('GRANT %s ON %s TO apc_writer',
                       CASE WHEN item.is_append_only THEN 'INSERT' ELSE 'INSERT, UPDATE' END, item.name);
    END LOOP;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the log keeps its owner and its grants (%)', SQLERRM;
END $$;

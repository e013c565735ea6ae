-- DDL on apc_log and apc_guard is refused outside maintain(), for superusers too; only a superuser can create, disable
-- or drop the event triggers that do it.

-- Whether a command changed something of the log or of the guard.
CREATE OR REPLACE FUNCTION apc_guard.concerns(class oid, object oid, schema text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(schema IN ('apc_log', 'apc_guard'), false)
        OR (class = 'pg_namespace'::regclass AND object IN (
                SELECT relnamespace FROM pg_class WHERE oid IN (SELECT name FROM apc_guard.log_tables)))
        OR coalesce(
            CASE class
                WHEN 'pg_class'::regclass THEN object
                WHEN 'pg_trigger'::regclass THEN (SELECT tgrelid FROM pg_trigger WHERE oid = object)
                WHEN 'pg_rewrite'::regclass THEN (SELECT ev_class FROM pg_rewrite WHERE oid = object)
                WHEN 'pg_policy'::regclass THEN (SELECT polrelid FROM pg_policy WHERE oid = object)
            END IN (
                SELECT name FROM apc_guard.log_tables
                UNION ALL
                SELECT oid FROM pg_class
                WHERE relnamespace IN (to_regnamespace('apc_log'), to_regnamespace('apc_guard'))), false)
        OR (class = 'pg_class'::regclass AND EXISTS (
                SELECT FROM pg_inherits
                WHERE inhrelid = object AND inhparent IN (SELECT name FROM apc_guard.log_tables)))
$$;

-- Owners, rights and schemas of all that is guarded: what GRANT, REASSIGN OWNED and ALTER … SET SCHEMA change without
-- naming it to ddl_command_end.
CREATE OR REPLACE FUNCTION apc_guard.rights() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT md5(string_agg(line, E'\n' ORDER BY line)) FROM (
        SELECT concat_ws(' ', 'c', oid, relname, relowner, relacl) AS line FROM pg_class
        WHERE relnamespace IN (to_regnamespace('apc_log'), to_regnamespace('apc_guard'))
        UNION ALL
        SELECT concat_ws(' ', 'a', attrelid, attnum, attacl)
        FROM pg_attribute JOIN pg_class AS owning ON owning.oid = attrelid
        WHERE relnamespace IN (to_regnamespace('apc_log'), to_regnamespace('apc_guard')) AND attacl IS NOT NULL
        UNION ALL
        SELECT concat_ws(' ', 'p', oid, proname, proowner, proacl) FROM pg_proc
        WHERE pronamespace IN (to_regnamespace('apc_log'), to_regnamespace('apc_guard'))
        UNION ALL
        SELECT concat_ws(' ', 'n', oid, nspname, nspowner, nspacl) FROM pg_namespace
        WHERE nspname IN ('apc_log', 'apc_guard')
    ) AS lines
$$;

CREATE OR REPLACE FUNCTION apc_guard.before_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('apc_guard.rights', apc_guard.rights(), true);
END $$;

CREATE OR REPLACE FUNCTION apc_guard.refuse_ddl(what text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'the schema of the log is frozen: % refused for %', what, session_user
        USING ERRCODE = 'insufficient_privilege', HINT = 'migrations run inside apc_guard.maintain()';
END $$;

CREATE OR REPLACE FUNCTION apc_guard.after_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_open constant boolean := apc_guard.in_maintenance();
    command record;
    hole record;
BEGIN
    IF TG_TAG IN ('REINDEX', 'REFRESH MATERIALIZED VIEW') THEN
        RETURN; -- they change nothing that is guarded
    END IF;
    FOR command IN
        SELECT * FROM pg_event_trigger_ddl_commands()
        WHERE apc_guard.concerns(classid, objid, schema_name)
    LOOP
        IF NOT is_open THEN
            PERFORM apc_guard.refuse_ddl(format('%s of %s', TG_TAG, command.object_identity));
        END IF;
        IF command.object_type = 'table' AND command.schema_name = 'apc_log'
           AND NOT EXISTS (SELECT FROM apc_guard.log_tables WHERE name = command.objid) THEN
            PERFORM apc_guard.register(command.objid);
        END IF;
    END LOOP;
    IF is_open AND '' <> (SELECT actor FROM apc_guard.maintenance WHERE transaction_id = pg_current_xact_id()) THEN
        SELECT * INTO hole FROM apc_guard.faults() WHERE fault <> 'is not known to the guard' LIMIT 1;
        IF FOUND THEN
            PERFORM apc_guard.refuse_ddl(format('%s (%s %s)', TG_TAG, hole.log_table, hole.fault));
        END IF;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION apc_guard.after_rights() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT apc_guard.in_maintenance()
       AND current_setting('apc_guard.rights', true) IS DISTINCT FROM apc_guard.rights() THEN
        PERFORM apc_guard.refuse_ddl(TG_TAG);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION apc_guard.on_drop() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_open constant boolean := apc_guard.in_maintenance();
    dropped record;
BEGIN
    FOR dropped IN
        SELECT *, coalesce(schema_name, address_names[1]) AS place FROM pg_event_trigger_dropped_objects()
    LOOP
        CONTINUE WHEN dropped.is_temporary OR dropped.place IS NULL OR dropped.place NOT IN ('apc_log', 'apc_guard');
        -- Columns and tables hold rows of the log: not even a maintenance may take them away.
        IF NOT is_open OR dropped.object_type IN ('table', 'table column') AND EXISTS (
               SELECT FROM apc_guard.log_tables
               WHERE name = dropped.objid AND is_append_only AND new_in IS DISTINCT FROM pg_current_xact_id()) THEN
            PERFORM apc_guard.refuse_ddl(format('drop of %s %s', dropped.object_type, dropped.object_identity));
        END IF;
        IF dropped.object_type = 'table' THEN
            DELETE FROM apc_guard.log_tables WHERE name = dropped.objid;
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION apc_guard.on_rewrite() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- ALTER COLUMN … TYPE … USING rewrites every row without an UPDATE.
    IF EXISTS (SELECT FROM apc_guard.log_tables
               WHERE name = pg_event_trigger_table_rewrite_oid() AND is_append_only
                 AND new_in IS DISTINCT FROM pg_current_xact_id_if_assigned()) THEN
        PERFORM apc_guard.refuse_ddl(format('rewriting %s', pg_event_trigger_table_rewrite_oid()::regclass));
    END IF;
END $$;

DO $$
DECLARE
    wanted record;
    rights_tags constant text := 'WHEN TAG IN (''GRANT'', ''REVOKE'', ''DROP OWNED'', '
        '''ALTER VIEW'', ''ALTER MATERIALIZED VIEW'', ''ALTER FUNCTION'', ''ALTER PROCEDURE'', ''ALTER ROUTINE'', '
        '''ALTER AGGREGATE'', ''ALTER SEQUENCE'', ''ALTER TYPE'', ''ALTER SCHEMA'')';
BEGIN
    IF NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        RAISE NOTICE 'the log is guarded by triggers and roles alone: event triggers need a superuser, and % is none',
            current_user;
        RETURN;
    END IF;
    FOR wanted IN
        SELECT * FROM (VALUES
            ('apc_guard_before_rights', 'ddl_command_start', rights_tags, 'before_ddl'),
            ('apc_guard_after_rights', 'ddl_command_end', rights_tags, 'after_rights'),
            ('apc_guard_ddl', 'ddl_command_end', '', 'after_ddl'),
            ('apc_guard_drop', 'sql_drop', '', 'on_drop'),
            ('apc_guard_rewrite', 'table_rewrite', '', 'on_rewrite')
        ) AS listed(name, event, filter, function)
    LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_event_trigger WHERE evtname = wanted.name);
        EXECUTE format('CREATE EVENT TRIGGER %I ON %s %s EXECUTE FUNCTION apc_guard.%I()',
                       wanted.name, wanted.event, wanted.filter, wanted.function);
        EXECUTE format('ALTER EVENT TRIGGER %I ENABLE ALWAYS', wanted.name);
    END LOOP;
END $$;

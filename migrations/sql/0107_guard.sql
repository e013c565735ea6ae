-- What guards the log. Can be run again: a superuser who migrates a database that was only partly guarded runs it once more
-- (apc_persister.database.guard.harden). Schema apc_guard belongs to the migrating user, the log to apc_owner: the log's owner cannot
-- replace what guards it, and code of his never runs with the rights of the guard's owner. No function here looks at a
-- temporary table before the catalog: pg_temp stands last in the search path.

-- Every table of apc_log. Only a projection, which stands beside the log, is not append-only.
CREATE TABLE IF NOT EXISTS apc_guard.log_tables (
    name regclass PRIMARY KEY,
    relname text NOT NULL, -- another table must not take its place
    is_append_only boolean NOT NULL,
    new_in xid8, -- the maintenance that made it, until it ends
    is_guards_own boolean NOT NULL DEFAULT false -- the guard alone writes its rows
);
-- A segment of a table (0122_segments.sql): of which one, and its bounds as the catalog tells them.
ALTER TABLE apc_guard.log_tables ADD COLUMN IF NOT EXISTS part_of regclass, ADD COLUMN IF NOT EXISTS bounds text;
-- The heads of shards, from 0125_several_databases.sql on: a trigger refuses those that are in another database.
ALTER TABLE apc_guard.log_tables ADD COLUMN IF NOT EXISTS is_fenced boolean NOT NULL DEFAULT false;
-- The open maintenance: a row until its transaction ends. Nobody but maintain() can insert one; and without an actor the guard
-- itself, while it opens a segment: that is looked at when it is done, not at each of its steps.
CREATE TABLE IF NOT EXISTS apc_guard.maintenance (
    transaction_id xid8 PRIMARY KEY DEFAULT pg_current_xact_id(),
    actor text NOT NULL,
    reason text NOT NULL
);
INSERT INTO apc_guard.log_tables (name, relname, is_append_only, is_guards_own)
SELECT oid::regclass, relname, relname <> ALL (ARRAY[
           'shards', 'sessions', 'log_edges', 'checkpoint_exports', 'task_tallies', 'transfer_rulings', 'protocol_tallies']),
       relname = 'log_events'
FROM pg_class WHERE relnamespace = 'apc_log'::regnamespace AND relkind IN ('r', 'p')
ON CONFLICT (name) DO NOTHING;

CREATE OR REPLACE FUNCTION apc_guard.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '%.% is append-only: % refused for %', TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_OP, session_user
        USING ERRCODE = 'insufficient_privilege', HINT = 'corrections are RETRACTION packets';
END $$;

-- Refuses a superuser too, and an owner who has given himself the right back in a maintenance.
CREATE OR REPLACE FUNCTION apc_guard.refuse_foreign_insert() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_user <> (SELECT pg_get_userbyid(proowner) FROM pg_proc
                        WHERE pronamespace = to_regnamespace('apc_guard') AND proname = 'record') THEN
        RAISE EXCEPTION '%.% is written by the guard alone: % refused for %',
            TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_OP, session_user
            USING ERRCODE = 'insufficient_privilege', HINT = 'apc_guard.maintain() and apc_guard.record_erasure() record';
    END IF;
    RETURN NULL;
END $$;

-- ENABLE ALWAYS: the triggers fire under session_replication_role = replica too, for superusers as well. A divided table has no
-- rows: each of its segments has triggers itself, because those that it would inherit go when it is detached.
CREATE OR REPLACE FUNCTION apc_guard.protect(log_table regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted record;
BEGIN
    FOR wanted IN
        SELECT * FROM (VALUES
            ('refuse_row_change', 'UPDATE OR DELETE', 'ROW'),
            ('refuse_statement', 'UPDATE OR DELETE OR TRUNCATE', 'STATEMENT')
        ) AS listed(name, events, level)
        WHERE level = 'STATEMENT' OR (SELECT relkind FROM pg_class WHERE oid = log_table) <> 'p'
    LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER %s BEFORE %s ON %s FOR EACH %s EXECUTE FUNCTION '
                       'apc_guard.refuse_change()', wanted.name, wanted.events, log_table, wanted.level);
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %s', log_table, wanted.name);
    END LOOP;
END $$;

-- Everything that would let a row of the log change, or one of the guard's own be forged, no matter who asks. Empty = the guard is
-- whole.
CREATE OR REPLACE FUNCTION apc_guard.faults() RETURNS TABLE (log_table regclass, fault text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
    -- tgtype: 1 row, 2 before, 4 insert, 8 delete, 16 update, 32 truncate (pg_trigger.h)
    CROSS JOIN (VALUES ('refuse_row_change', 1 + 2 + 8 + 16, 'refuse_change'),
                       ('refuse_statement', 2 + 8 + 16 + 32, 'refuse_change'),
                       ('refuse_foreign_insert', 2 + 4, 'refuse_foreign_insert'))
        AS wanted(trigger_name, type, function_name)
    WHERE listed.is_append_only AND (wanted.trigger_name <> 'refuse_foreign_insert' OR listed.is_guards_own)
      AND (wanted.trigger_name <> 'refuse_row_change'
           OR NOT EXISTS (SELECT FROM pg_class WHERE oid = listed.name AND relkind = 'p'))
      AND NOT EXISTS (
        SELECT FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid
        WHERE tgrelid = listed.name AND tgname = wanted.trigger_name AND tgtype = wanted.type AND tgenabled = 'A'
          AND pronamespace = to_regnamespace('apc_guard') AND proname = wanted.function_name
          AND tgqual IS NULL AND cardinality(tgattr) = 0)
    UNION ALL
    SELECT listed.name, 'has trigger ' || tgname || ', which is not the guard''s'
    FROM apc_guard.log_tables AS listed JOIN pg_trigger ON tgrelid = listed.name
    WHERE NOT tgisinternal AND tgname NOT IN ('refuse_row_change', 'refuse_statement')
      AND NOT (tgname = 'refuse_foreign_insert' AND listed.relname = 'log_events')
      AND NOT (tgname = 'fence_shard' AND listed.relname = 'shards')
    UNION ALL
    SELECT listed.name, 'lacks trigger fence_shard, or it was altered or disabled'
    FROM apc_guard.log_tables AS listed
    WHERE listed.is_fenced AND NOT EXISTS (
        SELECT FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid
        WHERE tgrelid = listed.name AND tgname = 'fence_shard' AND tgtype = 1 + 2 + 4 + 16 AND tgenabled = 'A'
          AND pronamespace = to_regnamespace('apc_guard') AND proname = 'fence_shard'
          AND tgqual IS NULL AND cardinality(tgattr) = 0)
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
    WHERE listed.is_append_only
      AND inhrelid NOT IN (SELECT name FROM apc_guard.log_tables WHERE part_of = inhparent)
    UNION ALL
    SELECT listed.name, format('is no segment of %s any more, for %s', listed.part_of, listed.bounds)
    FROM apc_guard.log_tables AS listed
    WHERE listed.part_of IS NOT NULL AND NOT EXISTS (
        SELECT FROM pg_inherits JOIN pg_class ON oid = inhrelid
        WHERE inhrelid = listed.name AND inhparent = listed.part_of AND NOT inhdetachpending
          AND pg_get_expr(relpartbound, oid) = coalesce(listed.bounds, pg_get_expr(relpartbound, oid)))
    UNION ALL
    SELECT listed.name, 'can be inserted into by ' || coalesce(rolname, 'everybody')
    FROM apc_guard.log_tables AS listed
    JOIN pg_class ON oid = listed.name
    CROSS JOIN LATERAL aclexplode(relacl) AS granted
    LEFT JOIN pg_roles ON pg_roles.oid = granted.grantee
    WHERE listed.is_guards_own AND granted.privilege_type = 'INSERT' AND granted.grantee NOT IN (
        SELECT proowner FROM pg_proc WHERE pronamespace = to_regnamespace('apc_guard') AND proname = 'record')
$$;

-- The one way into log_events: an entry of every shard, under the lock on their heads, in their order. Its owner is
-- apc_recorder, who owns nothing else and whose member nobody is. A shard that moved to another database is closed here.
CREATE OR REPLACE FUNCTION apc_guard.record(kind text, detail jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    head record;
BEGIN
    FOR head IN
        SELECT shard, next_seq, epoch, batch_no FROM apc_log.shards AS one
        WHERE to_jsonb(one) ->> 'moved_to' IS NULL ORDER BY shard FOR UPDATE -- the column comes with 0125
    LOOP
        INSERT INTO apc_log.log_events (shard, seq, epoch, batch_no, kind, actor, detail)
        VALUES (head.shard, head.next_seq, head.epoch, head.batch_no, record.kind, session_user, record.detail);
        UPDATE apc_log.shards SET next_seq = head.next_seq + 1 WHERE shard = head.shard;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION apc_guard.record_maintenance(reason text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT apc_guard.record('maintenance', jsonb_build_object('reason', reason))
$$;

-- For anyone who destroys keys: members of apc_owner. The entry names the keys and not their subject.
CREATE OR REPLACE FUNCTION apc_guard.record_erasure(key_ids uuid[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT apc_guard.record('erasure', jsonb_build_object('key_ids', to_jsonb(ARRAY(
        SELECT one::text FROM unnest(key_ids) AS one ORDER BY 1))))
$$;

CREATE OR REPLACE FUNCTION apc_guard.in_maintenance() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM apc_guard.maintenance WHERE transaction_id = pg_current_xact_id_if_assigned())
$$;

-- Lets this transaction change the schema of the log, and writes so into every shard's log. What it does not let:
-- guards go, columns or tables of the log go, stored rows be rewritten. Locks the heads of all shards, in order: the
-- writers wait, and then go on behind the entry.
CREATE OR REPLACE FUNCTION apc_guard.maintain(reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF apc_guard.in_maintenance() THEN
        RETURN;
    END IF;
    INSERT INTO apc_guard.maintenance (actor, reason) VALUES (session_user, maintain.reason);
    PERFORM apc_guard.record_maintenance(maintain.reason);
END $$;

-- At COMMIT: the guard must be whole, then the maintenance is over.
CREATE OR REPLACE FUNCTION apc_guard.end_maintenance() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
        ALTER TABLE apc_guard.maintenance ENABLE ALWAYS TRIGGER end_maintenance;
    END IF;
END $$;

-- Declares a table that this maintenance has made to be a projection beside the log: its rows may change.
CREATE OR REPLACE FUNCTION apc_guard.exempt(projection regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    here constant xid8 := pg_current_xact_id();
    guarding record;
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
    FOR guarding IN SELECT tgname FROM pg_trigger WHERE tgrelid = projection AND tgname IN ('refuse_row_change', 'refuse_statement') LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', guarding.tgname, projection);
    END LOOP;
END $$;

-- Takes a table of apc_log under the guard. A tightening: anyone who may call it may do so at any time.
CREATE OR REPLACE FUNCTION apc_guard.register(log_table regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
    FOR item IN SELECT name FROM apc_guard.log_tables WHERE part_of IS NOT NULL LOOP
        EXECUTE format('REVOKE ALL ON %s FROM apc_reader, apc_writer', item.name); -- read and written through the whole
    END LOOP;
    FOR item IN
        SELECT oid::regclass AS name, is_append_only FROM apc_guard.log_tables JOIN pg_class ON oid = name
        WHERE NOT is_guards_own AND part_of IS NULL
    LOOP
        EXECUTE format('GRANT %s ON %s TO apc_writer',
                       CASE WHEN item.is_append_only THEN 'INSERT' ELSE 'INSERT, UPDATE' END, item.name);
    END LOOP;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the log keeps its owner and its grants (%)', SQLERRM;
END $$;

-- apc_owner migrates: inside maintain(), which it may open and which every shard's log tells of.
REVOKE ALL ON FUNCTION apc_guard.protect(regclass), apc_guard.maintain(text), apc_guard.exempt(regclass),
    apc_guard.register(regclass), apc_guard.cover(), apc_guard.record(text, jsonb), apc_guard.record_maintenance(text),
    apc_guard.record_erasure(uuid[]) FROM PUBLIC;
DO $$
DECLARE
    item record;
BEGIN
    GRANT USAGE ON SCHEMA apc_log TO apc_writer, apc_reader;
    GRANT USAGE ON SCHEMA apc_guard TO apc_reader, apc_writer, apc_owner;
    GRANT SELECT ON ALL TABLES IN SCHEMA apc_guard TO apc_owner, apc_reader, apc_writer;
    GRANT INSERT, UPDATE, DELETE ON apc_guard.alembic_version TO apc_owner;
    GRANT EXECUTE ON FUNCTION apc_guard.protect(regclass), apc_guard.maintain(text), apc_guard.exempt(regclass),
        apc_guard.register(regclass), apc_guard.cover(), apc_guard.record_erasure(uuid[]) TO apc_owner;
    REVOKE INSERT ON apc_log.log_events FROM apc_writer;
    -- As cover(), which gives up where the server does not let us hand the tables over to apc_owner.
    GRANT SELECT ON ALL TABLES IN SCHEMA apc_log TO apc_reader, apc_writer;
    FOR item IN SELECT name, is_append_only FROM apc_guard.log_tables WHERE NOT is_guards_own AND part_of IS NULL LOOP
        EXECUTE format('GRANT %s ON %s TO apc_writer',
                       CASE WHEN item.is_append_only THEN 'INSERT' ELSE 'INSERT, UPDATE' END, item.name);
    END LOOP;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

DO $$
BEGIN
    IF EXISTS (SELECT FROM apc_guard.faults() WHERE fault LIKE 'lacks trigger refuse_foreign_insert%') THEN
        CREATE OR REPLACE TRIGGER refuse_foreign_insert BEFORE INSERT ON apc_log.log_events
            FOR EACH STATEMENT EXECUTE FUNCTION apc_guard.refuse_foreign_insert();
        ALTER TABLE apc_log.log_events ENABLE ALWAYS TRIGGER refuse_foreign_insert;
    END IF;
END $$;
SELECT apc_guard.protect(name) FROM apc_guard.log_tables
WHERE is_append_only AND name IN (SELECT log_table FROM apc_guard.faults());
SELECT apc_guard.cover();

-- All or nothing: without the recorder the guard's owner records, who then must keep the right to insert.
DO $$
DECLARE
    log_owner constant text := (SELECT relowner::regrole::text FROM pg_class WHERE oid = 'apc_log.log_events'::regclass);
BEGIN
    GRANT USAGE ON SCHEMA apc_log, apc_guard TO apc_recorder;
    GRANT SELECT ON apc_log.shards TO apc_recorder;
    GRANT UPDATE (next_seq) ON apc_log.shards TO apc_recorder;
    GRANT INSERT ON apc_log.log_events TO apc_recorder;
    ALTER FUNCTION apc_guard.record(text, jsonb) OWNER TO apc_recorder;
    EXECUTE format('REVOKE INSERT ON apc_log.log_events FROM %s', log_owner);
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'log_events is recorded as % (%)', current_user, SQLERRM;
END $$;

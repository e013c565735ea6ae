-- Rows of log_events come from the guard's own functions alone: whoever could insert one with his own rights, the owner
-- of the table included, could make the log writer attest what never happened. Can be run again, as 0004.
DO $$
BEGIN
    IF to_regrole('apc_recorder') IS NULL THEN
        CREATE ROLE apc_recorder NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role apc_recorder was not created (%): the owner of the log can add to log_events', SQLERRM;
END $$;

-- Listed: log tables whose rows the guard alone writes.
ALTER TABLE apc_guard.log_tables ADD COLUMN IF NOT EXISTS is_guards_own boolean NOT NULL DEFAULT false;

-- The one way into log_events: an entry of every shard, under the lock on their heads, in their order. Its owner is
-- apc_recorder, who owns nothing else and whose member nobody is.
CREATE OR REPLACE FUNCTION apc_guard.record(kind text, detail jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    head record;
BEGIN
    FOR head IN SELECT shard, next_seq, epoch, batch_no FROM apc_log.shards ORDER BY shard FOR UPDATE LOOP
        INSERT INTO apc_log.log_events (shard, seq, epoch, batch_no, kind, actor, detail)
        VALUES (head.shard, head.next_seq, head.epoch, head.batch_no, record.kind, session_user, record.detail);
        UPDATE apc_log.shards SET next_seq = head.next_seq + 1 WHERE shard = head.shard;
    END LOOP;
END $$;
REVOKE ALL ON FUNCTION apc_guard.record(text, jsonb) FROM PUBLIC;

CREATE OR REPLACE FUNCTION apc_guard.record_maintenance(reason text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT apc_guard.record('maintenance', jsonb_build_object('reason', reason))
$$;
REVOKE ALL ON FUNCTION apc_guard.record_maintenance(text) FROM PUBLIC;

-- For whoever destroys keys: members of apc_owner. The entry names the keys and not their subject.
CREATE OR REPLACE FUNCTION apc_guard.record_erasure(key_ids uuid[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT apc_guard.record('erasure', jsonb_build_object('key_ids', to_jsonb(ARRAY(
        SELECT one::text FROM unnest(key_ids) AS one ORDER BY 1))))
$$;
REVOKE ALL ON FUNCTION apc_guard.record_erasure(uuid[]) FROM PUBLIC;

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

-- As before; log_events is written by the guard alone, and nobody else may insert into it.
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
    UNION ALL
    SELECT listed.name, 'can be inserted into by ' || coalesce(rolname, 'everybody')
    FROM apc_guard.log_tables AS listed
    JOIN pg_class ON oid = listed.name
    CROSS JOIN LATERAL aclexplode(relacl) AS granted
    LEFT JOIN pg_roles ON pg_roles.oid = granted.grantee
    WHERE listed.is_guards_own AND granted.privilege_type = 'INSERT' AND granted.grantee NOT IN (
        SELECT proowner FROM pg_proc WHERE pronamespace = to_regnamespace('apc_guard') AND proname = 'record')
$$;

-- As before, but for log_events.
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
    FOR item IN
        SELECT oid::regclass AS name, is_append_only FROM apc_guard.log_tables JOIN pg_class ON oid = name
        WHERE NOT is_guards_own
    LOOP
        EXECUTE format('GRANT %s ON %s TO apc_writer',
                       CASE WHEN item.is_append_only THEN 'INSERT' ELSE 'INSERT, UPDATE' END, item.name);
    END LOOP;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the log keeps its owner and its grants (%)', SQLERRM;
END $$;

CREATE OR REPLACE TRIGGER refuse_foreign_insert BEFORE INSERT ON apc_log.log_events
    FOR EACH STATEMENT EXECUTE FUNCTION apc_guard.refuse_foreign_insert();
ALTER TABLE apc_log.log_events ENABLE ALWAYS TRIGGER refuse_foreign_insert;

DO $$
BEGIN
    REVOKE INSERT ON apc_log.log_events FROM apc_writer;
    GRANT EXECUTE ON FUNCTION apc_guard.record_erasure(uuid[]) TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles keep their rights on log_events (%)', SQLERRM;
END $$;

-- Whatever this one does runs as the recorder; the log's owner may not call it without a maintenance.
ALTER FUNCTION apc_guard.record_maintenance(text) OWNER TO CURRENT_USER;

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

UPDATE apc_guard.log_tables SET is_guards_own = true WHERE name = 'apc_log.log_events'::regclass;

-- What an agent's own login can do to other agents: take no lock on their tables, and no key of theirs.
SELECT apc_guard.maintain('keys of tasks by agent, rights by column, locks that no agent can take');

-- A task's id is one of its agent. Another agent may know it beforehand, and have another task under it.
ALTER TABLE apc_app.agent_task_events ADD COLUMN agent_id text;
ALTER TABLE apc_app.agent_task_effects ADD COLUMN agent_id text;
UPDATE apc_app.agent_task_events AS event SET agent_id = task.agent_id
FROM apc_app.agent_tasks AS task WHERE task.task_id = event.task_id;
UPDATE apc_app.agent_task_effects AS effect SET agent_id = task.agent_id
FROM apc_app.agent_tasks AS task WHERE task.task_id = effect.task_id;
ALTER TABLE apc_app.agent_task_events
    ALTER COLUMN agent_id SET NOT NULL,
    DROP CONSTRAINT agent_task_events_task_id_fkey,
    DROP CONSTRAINT agent_task_events_pkey,
    ADD PRIMARY KEY (task_id, agent_id, number);
ALTER TABLE apc_app.agent_task_effects
    ALTER COLUMN agent_id SET NOT NULL,
    DROP CONSTRAINT agent_task_effects_task_id_fkey,
    DROP CONSTRAINT agent_task_effects_pkey,
    ADD PRIMARY KEY (task_id, agent_id, name);
ALTER TABLE apc_app.agent_tasks DROP CONSTRAINT agent_tasks_pkey, ADD PRIMARY KEY (task_id, agent_id);
ALTER TABLE apc_app.agent_task_events
    ADD FOREIGN KEY (task_id, agent_id) REFERENCES apc_app.agent_tasks ON DELETE CASCADE;
ALTER TABLE apc_app.agent_task_effects
    ADD FOREIGN KEY (task_id, agent_id) REFERENCES apc_app.agent_tasks ON DELETE CASCADE;
DROP POLICY agents ON apc_app.agent_task_events;
DROP POLICY agents ON apc_app.agent_task_effects;
CREATE POLICY agents ON apc_app.agent_task_events USING ((SELECT apc_app.writing_agent()) IN ('', agent_id));
CREATE POLICY agents ON apc_app.agent_task_effects USING ((SELECT apc_app.writing_agent()) IN ('', agent_id));

-- Whose turn it is to fire a schedule: the process that has locked the row, which stays when the schedule goes.
CREATE TABLE apc_app.schedule_turns (
    agent_id text NOT NULL,
    name text NOT NULL,
    PRIMARY KEY (agent_id, name)
);
ALTER TABLE apc_app.schedule_turns ENABLE ROW LEVEL SECURITY;
CREATE POLICY agents ON apc_app.schedule_turns USING ((SELECT apc_app.writing_agent()) IN ('', agent_id));

-- The right to DELETE, and that to UPDATE a whole table, are rights to LOCK it. Agents get UPDATE by column, and mark what
-- is to go: the trigger removes it in the same statement. The policies hold for the mark.
CREATE FUNCTION apc_app.remove_marked() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('DELETE FROM apc_app.%I WHERE is_removed', TG_TABLE_NAME);
    RETURN NULL;
END $$;
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['agent_state_store', 'conversation_history', 'agent_tasks', 'agent_effects', 'schedules'] LOOP
        EXECUTE format('ALTER TABLE apc_app.%I ADD COLUMN is_removed boolean NOT NULL DEFAULT false', name);
        EXECUTE format('CREATE INDEX %I ON apc_app.%I (is_removed) WHERE is_removed', name || '_removed', name);
        EXECUTE format('CREATE TRIGGER remove_marked AFTER UPDATE OF is_removed ON apc_app.%I '
                       'FOR EACH STATEMENT EXECUTE FUNCTION apc_app.remove_marked()', name);
    END LOOP;
END $$;

DO $$
BEGIN
    ALTER TABLE apc_app.schedule_turns OWNER TO apc_owner;
    ALTER FUNCTION apc_app.remove_marked() OWNER TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the turns of schedules keep the owner % (%)', current_user, SQLERRM;
END $$;

DO $$
DECLARE
    item record;
BEGIN
    REVOKE UPDATE, DELETE ON ALL TABLES IN SCHEMA apc_app FROM apc_agent;
    GRANT SELECT, INSERT ON apc_app.schedule_turns TO apc_agent;
    FOR item IN
        SELECT attrelid::regclass AS name, string_agg(quote_ident(attname), ', ' ORDER BY attnum) AS columns
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        WHERE relnamespace = 'apc_app'::regnamespace AND relkind = 'r' AND attnum > 0 AND NOT attisdropped
          AND attgenerated = ''
        GROUP BY attrelid
    LOOP
        EXECUTE format('GRANT UPDATE (%s) ON %s TO apc_agent', item.columns, item.name);
    END LOOP;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

-- As in 0111_uses, but for the lock: one on a table in which agents have no right.
CREATE OR REPLACE FUNCTION apc_log.sum_runs(at_rest_since timestamptz, at_most integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    resting record;
    done integer := 0;
BEGIN
    BEGIN
        LOCK TABLE apc_log.summed_uses IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION
        WHEN lock_not_available THEN
            RETURN 0;
    END;
    FOR resting IN
        SELECT run_id FROM apc_log.unsummed_runs WHERE judged_at <= at_rest_since ORDER BY judged_at, run_id LIMIT at_most
    LOOP
        PERFORM apc_log.sum_run(resting.run_id);
        done := done + 1;
    END LOOP;
    RETURN done;
END $$;

-- A login agent.<agent_id> sees and writes the rows of its agent alone. It is told by session_user, which no statement
-- of its changes. Other logins see all of it: operators, and deployments in which agents share one.
ALTER TABLE apc_app.conversation_history ADD COLUMN made_by text NOT NULL DEFAULT session_user;

DO $$
DECLARE
    agent constant text := $q$(SELECT CASE WHEN starts_with(session_user::text, 'agent.') THEN substr(session_user::text, 7) END)$q$;
    own constant text := format('%1$s IS NULL OR agent_id = %1$s', agent);
    of_own_task constant text :=
        format('%s IS NULL OR EXISTS (SELECT FROM apc_app.agent_tasks AS task WHERE task.task_id = %%s.task_id)', agent);
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['agent_tasks', 'agent_effects', 'agent_task_events', 'agent_task_effects'] LOOP
        EXECUTE format('ALTER TABLE apc_app.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY agents ON apc_app.%I USING (%s)', name,
                       CASE WHEN name LIKE 'agent_task\_%' THEN format(of_own_task, name) ELSE own END);
    END LOOP;
    EXECUTE format('CREATE POLICY agents ON apc_app.agent_state_store AS RESTRICTIVE USING (%s)', own);
    EXECUTE format('CREATE POLICY agents ON apc_app.conversation_history AS RESTRICTIVE USING (%s)',
                   agent || ' IS NULL OR made_by = session_user');
END $$;

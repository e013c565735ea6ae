-- The login of a host, host.<host>, has the rows of the agents that run there: those that are registered with it as their
-- broker user. An agent that moves takes its rows with it.
SELECT apc_guard.maintain('rows of the agents of a host');

-- The newest change of one agent.
CREATE INDEX registry_events_agent ON apc_log.registry_events (agent_id, shard, seq DESC);

-- As in 0106_app; the agents of a host write in its name, which no agent_id can be.
CREATE OR REPLACE FUNCTION apc_app.writing_agent() RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN starts_with(session_user::text, 'agent.') THEN substr(session_user::text, 7)
            WHEN starts_with(session_user::text, 'host.') THEN 'host/' || substr(session_user::text, 6) ELSE '' END;

-- Whether this login is that of a host on which the agent runs. Every shard logs every change of an agent: the first one
-- is asked, as far as its tree holds it.
CREATE FUNCTION apc_app.runs_here(agent text) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT starts_with(session_user::text, 'host.') THEN
        RETURN false;
    END IF;
    RETURN coalesce((
        SELECT event.change ->> 'action' = 'add' AND event.change ->> 'broker_user' = session_user::text
               AND event.change ->> 'host' = substr(session_user::text, 6)
        FROM apc_log.registry_events AS event JOIN apc_log.log_edges AS tree USING (shard)
        WHERE event.agent_id = agent AND event.shard = 0 AND event.seq <= tree.tree_size
        ORDER BY event.seq DESC LIMIT 1), false);
END $$;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['agent_tasks', 'agent_effects', 'agent_task_events', 'agent_task_effects', 'schedules',
                                'schedule_turns'] LOOP
        EXECUTE format('DROP POLICY agents ON apc_app.%I', name);
        EXECUTE format('CREATE POLICY agents ON apc_app.%I USING ((SELECT apc_app.writing_agent()) IN ('''', agent_id) '
                       'OR apc_app.runs_here(agent_id))', name);
    END LOOP;
END $$;
DROP POLICY agents ON apc_app.agent_state_store;
CREATE POLICY agents ON apc_app.agent_state_store AS RESTRICTIVE
    USING ((SELECT apc_app.writing_agent()) IN ('', agent_id) OR apc_app.runs_here(agent_id));
DROP POLICY agents ON apc_app.conversation_history;
CREATE POLICY agents ON apc_app.conversation_history AS RESTRICTIVE
    USING ((SELECT apc_app.writing_agent()) IN ('', made_by) OR apc_app.runs_here(made_by));

DO $$
BEGIN
    ALTER FUNCTION apc_app.runs_here(text) OWNER TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'who runs where is asked as % (%)', current_user, SQLERRM;
END $$;

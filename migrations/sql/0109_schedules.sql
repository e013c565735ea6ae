-- Schedules of agents (docs/how-to/timers.md): up to when each one's firings are accounted for.
CREATE TABLE apc_app.schedules (
    agent_id text NOT NULL,
    name text NOT NULL,
    line text NOT NULL,
    timezone text NOT NULL,
    misfire text NOT NULL CHECK (misfire IN ('skip', 'once', 'all')),
    -- Every firing up to here was published or is left out.
    fired_until timestamptz NOT NULL,
    next_at timestamptz NOT NULL,
    PRIMARY KEY (agent_id, name)
);

-- A login agent.<agent_id> sees and writes the rows of its agent alone, as in the other tables of agents.
ALTER TABLE apc_app.schedules ENABLE ROW LEVEL SECURITY;
CREATE POLICY agents ON apc_app.schedules USING (apc_app.writing_agent() IN ('', agent_id));

DO $$
BEGIN
    ALTER TABLE apc_app.schedules OWNER TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the schedules keep the owner % (%)', current_user, SQLERRM;
END $$;

DO $$
BEGIN
    GRANT SELECT, INSERT, UPDATE, DELETE ON apc_app.schedules TO apc_agent;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

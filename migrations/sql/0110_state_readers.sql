-- Who looks at the tasks and effects of agents and changes nothing: the web console's login (docs/how-to/security.md).
-- The role may exist already (another database of this cluster), and a managed server may forbid CREATE ROLE.
DO $$
BEGIN
    IF to_regrole('apc_state_reader') IS NULL THEN
        CREATE ROLE apc_state_reader NOLOGIN;
    END IF;
EXCEPTION
    -- Two databases of one cluster that migrate at once: the second waits here, then finds the role.
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role apc_state_reader was not created (%): an administrator makes it', SQLERRM;
END $$;

-- Row-level security shows them all rows: their logins are no agents'.
DO $$
BEGIN
    GRANT USAGE ON SCHEMA apc_app TO apc_state_reader;
    GRANT SELECT ON apc_app.agent_tasks, apc_app.agent_effects TO apc_state_reader;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

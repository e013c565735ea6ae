-- Group roles of the cluster; log-in users are made members of them by the operator.
-- They may exist already (another database of this cluster), and a managed server may forbid CREATE ROLE.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['apc_owner', 'apc_writer', 'apc_reader', 'apc_agent', 'apc_recorder'] LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = name);
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        EXCEPTION
            -- Two databases of one cluster that migrate at once: the second waits here, then finds the role.
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN
                RAISE NOTICE 'role % was not created (%): the log is guarded by triggers alone', name, SQLERRM;
        END;
    END LOOP;
END $$;

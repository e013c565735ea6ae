-- The door of A2A (docs/how-to/a2a.md): a caller's tasks are the sessions that its client has opened.
CREATE INDEX sessions_opener ON apc_log.sessions ((document ->> 'opener'), updated_at, session_id);

-- Where clients are told of their tasks, and up to what each was told: it goes on from here after every restart.
CREATE TABLE apc_app.a2a_push (
    caller text NOT NULL,
    task_id text NOT NULL,
    config_id text NOT NULL,
    url text NOT NULL,
    -- Token and credentials of the receiver, encrypted with the door's key.
    sealed bytea NOT NULL,
    -- Artifacts that the receiver has confirmed, and the last status.
    told_artifacts integer NOT NULL DEFAULT 0,
    told_status text NOT NULL DEFAULT '',
    -- The task's last change when everything was told.
    seen_at timestamptz,
    attempts integer NOT NULL DEFAULT 0,
    due_at timestamptz NOT NULL DEFAULT now(),
    -- One door at a time tells a receiver.
    leased_until timestamptz,
    ended_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (caller, task_id, config_id)
);
CREATE INDEX a2a_push_due ON apc_app.a2a_push (due_at) WHERE ended_at IS NULL;

-- The login of a door: it reads the log as apc_reader does, and keeps this table.
DO $$
BEGIN
    IF to_regrole('apc_door') IS NULL THEN
        CREATE ROLE apc_door NOLOGIN;
    END IF;
EXCEPTION
    -- Two databases of one cluster that migrate at once: the second waits here, then finds the role.
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role apc_door was not created (%): an administrator makes it', SQLERRM;
END $$;

DO $$
BEGIN
    ALTER TABLE apc_app.a2a_push OWNER TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the push table keeps the owner % (%)', current_user, SQLERRM;
END $$;

DO $$
BEGIN
    GRANT USAGE ON SCHEMA apc_app TO apc_door;
    GRANT SELECT, INSERT, UPDATE, DELETE ON apc_app.a2a_push TO apc_door;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

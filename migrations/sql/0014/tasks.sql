-- Durable tasks of agents (docs/specification/agents.md section 5): what an ASYNC action has become, its events, its effects.
CREATE TABLE apc_app.agent_tasks (
    task_id uuid PRIMARY KEY,
    agent_id text NOT NULL,
    session_id text NOT NULL,
    spec jsonb NOT NULL,
    depends_on uuid[] NOT NULL DEFAULT '{}',
    status text NOT NULL DEFAULT 'PENDING'
        CHECK (status IN ('PENDING', 'RUNNING', 'SUCCEEDED', 'FAILED', 'CANCELLED')),
    -- Only the newest attempt may write: it fences a worker that woke up too late.
    attempt integer NOT NULL DEFAULT 0,
    lost_leases integer NOT NULL DEFAULT 0,
    worker text,
    lease_until timestamptz,
    progress double precision NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 1),
    told_progress double precision NOT NULL DEFAULT 0,
    note text,
    result jsonb,
    error text,
    cancel_reason text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at timestamptz,
    finished_at timestamptz,
    CHECK ((status = 'RUNNING') = (lease_until IS NOT NULL)),
    CHECK ((status IN ('SUCCEEDED', 'FAILED', 'CANCELLED')) = (finished_at IS NOT NULL))
);
CREATE INDEX agent_tasks_open ON apc_app.agent_tasks (agent_id, created_at) WHERE status IN ('PENDING', 'RUNNING');
CREATE INDEX agent_tasks_session ON apc_app.agent_tasks (session_id, created_at);
CREATE INDEX agent_tasks_newest ON apc_app.agent_tasks (created_at DESC);

-- An outbox: written with the change that it tells of, announced as a packet with an id that is fixed before.
CREATE TABLE apc_app.agent_task_events (
    task_id uuid NOT NULL REFERENCES apc_app.agent_tasks ON DELETE CASCADE,
    number integer NOT NULL,
    packet_id uuid NOT NULL,
    document jsonb NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    announced_at timestamptz,
    PRIMARY KEY (task_id, number)
);
CREATE INDEX agent_task_events_open ON apc_app.agent_task_events (made_at) WHERE announced_at IS NULL;

-- The primary key is what makes an effect once: a second attempt waits for the first one's transaction.
CREATE TABLE apc_app.agent_task_effects (
    task_id uuid NOT NULL REFERENCES apc_app.agent_tasks ON DELETE CASCADE,
    name text NOT NULL,
    value jsonb,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (task_id, name)
);

DO $$
BEGIN
    GRANT SELECT, INSERT, UPDATE, DELETE
        ON apc_app.agent_tasks, apc_app.agent_task_events, apc_app.agent_task_effects TO apc_agent;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

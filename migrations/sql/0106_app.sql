-- The agents' own tables: role apc_agent has rights here only.
CREATE SCHEMA apc_app;

-- The agent whose login this is, agent.<agent_id>; '' for all other logins. No statement of a login changes session_user.
CREATE FUNCTION apc_app.writing_agent() RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN starts_with(session_user::text, 'agent.') THEN substr(session_user::text, 7) ELSE '' END;

-- The memory of agents (docs/reference/conformance/memory.md section 4): its two tables with its columns and indexes, plus
-- `revision` (compare and set), `owner` (the tenant: row-level security) and `search` (the words of a conversation).
-- ctx.state is the state `ctx.state` that an agent has for a session.
CREATE TABLE apc_app.agent_state_store (
    agent_id text NOT NULL,
    owner_id text NOT NULL,
    state_value jsonb NOT NULL,
    revision bigint NOT NULL DEFAULT 1,
    updated_at timestamptz NOT NULL DEFAULT now(),
    state_key text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP,
    owner text NOT NULL,
    PRIMARY KEY (agent_id, owner_id, state_key, owner)
);
CREATE INDEX agent_state_store_owner_id ON apc_app.agent_state_store (owner_id);
CREATE INDEX agent_state_store_state_key ON apc_app.agent_state_store (state_key);
CREATE INDEX agent_state_store_updated_at ON apc_app.agent_state_store (updated_at);

-- A conversation has a row for each login agent.<agent_id> that adds to the session, which no other agent's login sees, and
-- one for all other logins ('').
CREATE TABLE apc_app.conversation_history (
    session_id text NOT NULL,
    user_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP,
    updated_at timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP,
    conversation_data jsonb NOT NULL,
    version text NOT NULL,
    revision bigint NOT NULL DEFAULT 1,
    owner text NOT NULL,
    search tsvector NOT NULL,
    -- What a listing shows, so that it need not read the conversations.
    summary text GENERATED ALWAYS AS (
        CASE WHEN jsonb_typeof(conversation_data #> '{metadata,summary}') = 'string'
             THEN left(conversation_data #>> '{metadata,summary}', 500) END) STORED,
    message_count integer GENERATED ALWAYS AS (jsonb_array_length(conversation_data -> 'messages')) STORED,
    made_by text NOT NULL DEFAULT apc_app.writing_agent(),
    PRIMARY KEY (session_id, owner, made_by)
);
-- Listing and searching go by user. `search` has no index: row-level security keeps PostgreSQL from using
-- one, because the operator @@ is not leakproof.
CREATE INDEX conversation_history_user_id
    ON apc_app.conversation_history (user_id, updated_at DESC, session_id COLLATE "C") INCLUDE (session_id, owner, made_by);
CREATE INDEX conversation_history_updated_at ON apc_app.conversation_history (updated_at);

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

-- Effects that handlers make once (docs/specification/agents.md section 1): claimed before they are made, recorded after.
-- The primary key decides who makes an effect. One that is claimed, not made, and whose lease has ended is unknown.
CREATE TABLE apc_app.agent_effects (
    packet_id uuid NOT NULL,
    agent_id text NOT NULL,
    key text NOT NULL CHECK (length(key) BETWEEN 1 AND 200),
    claim_id uuid NOT NULL,
    session_id text NOT NULL,
    worker text NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,
    made_at timestamptz,
    result jsonb,
    problem text,
    settled_by text,
    -- When the packet expires: no handler starts for it after that, so nobody asks for the effect again.
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (packet_id, agent_id, key)
);
CREATE INDEX agent_effects_newest ON apc_app.agent_effects (claimed_at DESC);
CREATE INDEX agent_effects_made ON apc_app.agent_effects (agent_id, expires_at) WHERE made_at IS NOT NULL;

-- Each transaction says whose rows it may see and write; one that says nothing sees none.
ALTER TABLE apc_app.conversation_history ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE apc_app.agent_state_store ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY owners ON apc_app.conversation_history USING (owner = (SELECT current_setting('apc.owner', true)));
CREATE POLICY owners ON apc_app.agent_state_store USING (owner = (SELECT current_setting('apc.owner', true)));

-- A login agent.<agent_id> sees and writes the rows of its agent alone. Other logins see all of it: operators, and deployments
-- in which agents share one.
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
END $$;
CREATE POLICY agents ON apc_app.conversation_history AS RESTRICTIVE
    USING (apc_app.writing_agent() IN ('', made_by));

-- What the agents have goes to apc_owner like the log: a member of it can migrate it.
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT oid::regclass FROM pg_class WHERE relnamespace = 'apc_app'::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO apc_owner', name);
    END LOOP;
    ALTER FUNCTION apc_app.writing_agent() OWNER TO apc_owner;
    ALTER SCHEMA apc_app OWNER TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the memory keeps the owner % (%)', current_user, SQLERRM;
END $$;

DO $$
BEGIN
    GRANT USAGE ON SCHEMA apc_app TO apc_agent;
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA apc_app TO apc_agent;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

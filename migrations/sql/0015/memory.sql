-- The agents' memory (docs/reference/conformance/memory.md section 4): its two tables with its columns and indexes, plus
-- `revision` (compare and set), `owner` (row-level security) and `search` (the words of a conversation).
CREATE TABLE apc_app.conversation_history (
    session_id text PRIMARY KEY,
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
    message_count integer GENERATED ALWAYS AS (jsonb_array_length(conversation_data -> 'messages')) STORED
);
-- Listing and searching go by user. `search` has no index of its own: row-level security keeps PostgreSQL from using
-- one, because the operator @@ is not leakproof.
CREATE INDEX conversation_history_user_id
    ON apc_app.conversation_history (user_id, updated_at DESC, session_id COLLATE "C") INCLUDE (session_id, owner);
CREATE INDEX conversation_history_updated_at ON apc_app.conversation_history (updated_at);

-- ctx.state was one document per (agent, session): it is the state `ctx.state` that the agent has for that session.
ALTER TABLE apc_app.agent_state_store RENAME COLUMN session_id TO owner_id;
ALTER TABLE apc_app.agent_state_store RENAME COLUMN document TO state_value;
ALTER TABLE apc_app.agent_state_store
    ADD COLUMN state_key text NOT NULL DEFAULT 'ctx.state',
    ADD COLUMN created_at timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP,
    ADD COLUMN owner text NOT NULL DEFAULT 'apc',
    DROP CONSTRAINT agent_state_store_pkey,
    ADD PRIMARY KEY (agent_id, owner_id, state_key);
UPDATE apc_app.agent_state_store SET created_at = updated_at;
ALTER TABLE apc_app.agent_state_store
    ALTER COLUMN state_key DROP DEFAULT,
    ALTER COLUMN owner DROP DEFAULT;
CREATE INDEX agent_state_store_owner_id ON apc_app.agent_state_store (owner_id);
CREATE INDEX agent_state_store_state_key ON apc_app.agent_state_store (state_key);
CREATE INDEX agent_state_store_updated_at ON apc_app.agent_state_store (updated_at);

-- Each transaction says whose rows it may see and write; one that says nothing sees none.
ALTER TABLE apc_app.conversation_history ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE apc_app.agent_state_store ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY owners ON apc_app.conversation_history USING (owner = (SELECT current_setting('apc.owner', true)));
CREATE POLICY owners ON apc_app.agent_state_store USING (owner = (SELECT current_setting('apc.owner', true)));

-- What the agents have goes to apc_owner like the log: a member of it can migrate it from now on.
DO $$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT oid::regclass FROM pg_class WHERE relnamespace = 'apc_app'::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO apc_owner', name);
    END LOOP;
    ALTER SCHEMA apc_app OWNER TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the memory keeps the owner % (%)', current_user, SQLERRM;
END $$;

DO $$
BEGIN
    GRANT SELECT, INSERT, UPDATE, DELETE ON apc_app.conversation_history TO apc_agent;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

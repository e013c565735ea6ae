-- The agents' own tables: role apc_agent has rights here only.
CREATE SCHEMA apc_app;
CREATE TABLE apc_app.agent_state_store (
    agent_id text NOT NULL,
    session_id text NOT NULL,
    document jsonb NOT NULL,
    revision bigint NOT NULL DEFAULT 1,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (agent_id, session_id)
);

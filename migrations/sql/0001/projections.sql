-- Beside the log, not append-only: written in the same transaction as the entries they follow from.
CREATE TABLE apc_log.sessions (
    session_id text PRIMARY KEY,
    shard integer NOT NULL,
    epoch bigint NOT NULL,
    batch_no bigint NOT NULL,
    run_id text NOT NULL,
    state text NOT NULL,
    is_terminal boolean NOT NULL,
    round integer NOT NULL,
    generation bigint NOT NULL,
    step bigint NOT NULL,
    open_deliveries integer NOT NULL,
    document jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- What a gate that takes the shard has to look at.
    is_open boolean NOT NULL GENERATED ALWAYS AS (open_deliveries > 0 OR NOT is_terminal) STORED
)
-- Each batch rewrites the rows it touches: room on the page keeps these updates out of the indexes.
WITH (fillfactor = 60);
CREATE INDEX sessions_run ON apc_log.sessions (run_id);
CREATE INDEX sessions_open ON apc_log.sessions (shard) WHERE is_open;

CREATE TABLE apc_log.agents (
    agent_id text PRIMARY KEY,
    broker_user text NOT NULL,
    role text NOT NULL,
    swarm_id text NOT NULL,
    rights text[] NOT NULL,
    handles text[] NOT NULL,
    public_keys jsonb NOT NULL,
    is_revoked boolean NOT NULL DEFAULT false,
    change_id uuid NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);

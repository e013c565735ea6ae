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

-- Like the agents' other tables: a member of apc_owner can migrate it from now on.
DO $$
BEGIN
    ALTER TABLE apc_app.agent_effects OWNER TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the effects keep the owner % (%)', current_user, SQLERRM;
END $$;

DO $$
BEGIN
    GRANT SELECT, INSERT, UPDATE, DELETE ON apc_app.agent_effects TO apc_agent;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

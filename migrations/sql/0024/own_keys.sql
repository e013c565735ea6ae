-- Tenants have their own rows under the same ids: the owner is part of both keys. A conversation has a row for each login
-- agent.<agent_id> that adds to the session, which no other agent's login sees, and one for all other logins ('').
CREATE FUNCTION apc_app.writing_agent() RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN starts_with(session_user::text, 'agent.') THEN substr(session_user::text, 7) ELSE '' END;

ALTER TABLE apc_app.agent_state_store
    DROP CONSTRAINT agent_state_store_pkey,
    ADD PRIMARY KEY (agent_id, owner_id, state_key, owner);
ALTER TABLE apc_app.conversation_history
    ADD COLUMN made_by text NOT NULL DEFAULT apc_app.writing_agent(),
    DROP CONSTRAINT conversation_history_pkey,
    ADD PRIMARY KEY (session_id, owner, made_by);
CREATE POLICY agents ON apc_app.conversation_history AS RESTRICTIVE
    USING (apc_app.writing_agent() IN ('', made_by));

-- A listing still needs the index alone.
DROP INDEX apc_app.conversation_history_user_id;
CREATE INDEX conversation_history_user_id ON apc_app.conversation_history
    (user_id, updated_at DESC, session_id COLLATE "C") INCLUDE (session_id, owner, made_by);

DO $$
BEGIN
    ALTER FUNCTION apc_app.writing_agent() OWNER TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the function keeps its owner (%): connect as %', SQLERRM, current_user;
END $$;

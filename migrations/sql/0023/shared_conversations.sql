-- A conversation belongs to its session (Agent Memory Protocol 1.0: one row, by session_id), and every agent of the
-- session adds to it: no login of one agent can own it.
DROP POLICY agents ON apc_app.conversation_history;
ALTER TABLE apc_app.conversation_history DROP COLUMN made_by;

-- What the guard knows. Every script of this folder can be run again: a superuser who migrates a database that was
-- only partly guarded runs them once more (apc_persister.guard.harden).

-- Every table of apc_log. Only a projection, which stands beside the log, is not append-only.
CREATE TABLE IF NOT EXISTS apc_guard.log_tables (
    name regclass PRIMARY KEY,
    relname text NOT NULL, -- another table must not take its place
    is_append_only boolean NOT NULL,
    new_in xid8 -- the maintenance that made it, until it ends
);
-- The open maintenance: a row until its transaction ends. Nobody but maintain() can insert one.
CREATE TABLE IF NOT EXISTS apc_guard.maintenance (
    transaction_id xid8 PRIMARY KEY DEFAULT pg_current_xact_id(),
    actor text NOT NULL,
    reason text NOT NULL
);
INSERT INTO apc_guard.log_tables (name, relname, is_append_only)
SELECT oid::regclass, relname, relname <> ALL (ARRAY['shards', 'sessions', 'agents'])
FROM pg_class WHERE relnamespace = 'apc_log'::regnamespace AND relkind IN ('r', 'p')
ON CONFLICT (name) DO NOTHING;

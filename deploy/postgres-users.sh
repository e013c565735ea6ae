#!/bin/sh
# Log-in users of the database, each in the group role of its job (docs/how-to/security.md). The postgres image runs it when the
# database is made; elsewhere run it as a superuser with the PG* variables of psql. `apc migrate` finds the groups there.
set -eu

# A password: the variable, else the secret of that name.
password() {
    eval "given=\${$1:-}"
    if [ -n "$given" ]; then printf %s "$given"; else cat "/run/secrets/$(echo "$1" | tr '[:upper:]' '[:lower:]')"; fi
}
gate=$(password GATE_DB_PASSWORD)
log_writer=$(password LOG_WRITER_DB_PASSWORD)
operator=$(password OPERATOR_DB_PASSWORD)
librarian=
if [ -n "${LIBRARIAN_PASSWORD:-}" ] || [ -e /run/secrets/librarian_password ]; then librarian=$(password LIBRARIAN_PASSWORD); fi

psql --set ON_ERROR_STOP=1 --no-psqlrc --quiet \
    --username "${POSTGRES_USER:-postgres}" --dbname "${POSTGRES_DB:-postgres}" \
    --set gate="$gate" --set log_writer="$log_writer" \
    --set librarian="$librarian" --set operator="$operator" <<'SQL'
SELECT format('CREATE ROLE %I NOLOGIN', name) FROM unnest(ARRAY['apc_owner', 'apc_writer', 'apc_reader', 'apc_agent', 'apc_registrar']) AS name
WHERE to_regrole(name) IS NULL \gexec
CREATE ROLE apc_gate LOGIN PASSWORD :'gate' IN ROLE apc_reader;
CREATE ROLE apc_log_writer LOGIN PASSWORD :'log_writer' IN ROLE apc_writer;
-- The logins of agents are made by `apc agent add`. That of the reference swarm's librarian is made here, because it also
-- looks into the log of earlier runs for what worked.
SELECT format('CREATE ROLE "agent.librarian" LOGIN PASSWORD %L IN ROLE apc_agent, apc_reader', :'librarian') WHERE :'librarian' <> '' \gexec
-- The operator also looks after the tasks, effects and memories of agents, and makes their logins.
CREATE ROLE apc_operator LOGIN PASSWORD :'operator' IN ROLE apc_reader, apc_agent, apc_registrar;
SQL

#!/bin/sh
# Log-in users of the database, each in the group role of its job (docs/how-to/security.md). The postgres image runs it when the
# database is made; elsewhere, or after an upgrade, run it as a superuser with the PG* variables of psql: it makes what is missing.
# `apc migrate` finds the groups there.
set -eu

# A password: the variable, else the secret of that name.
password() {
    eval "given=\${$1:-}"
    if [ -n "$given" ]; then printf %s "$given"; else cat "/run/secrets/$(echo "$1" | tr '[:upper:]' '[:lower:]')"; fi
}
# The same, or nothing.
optional() {
    if eval "[ -n \"\${$1:-}\" ]" || [ -e "/run/secrets/$(echo "$1" | tr '[:upper:]' '[:lower:]')" ]; then password "$1"; fi
}
gate=$(password GATE_DB_PASSWORD)
log_writer=$(password LOG_WRITER_DB_PASSWORD)
operator=$(password OPERATOR_DB_PASSWORD)
web=$(optional WEB_DB_PASSWORD)
door=$(optional DOOR_DB_PASSWORD)
archiver=$(optional ARCHIVER_DB_PASSWORD)
librarian=$(optional LIBRARIAN_PASSWORD)

psql --set ON_ERROR_STOP=1 --no-psqlrc --quiet \
    --username "${POSTGRES_USER:-postgres}" --dbname "${POSTGRES_DB:-postgres}" \
    --set gate="$gate" --set log_writer="$log_writer" --set operator="$operator" \
    --set web="$web" --set door="$door" --set archiver="$archiver" --set librarian="$librarian" <<'SQL'
SELECT format('CREATE ROLE %I NOLOGIN', name)
FROM unnest(ARRAY['apc_owner', 'apc_writer', 'apc_reader', 'apc_agent', 'apc_registrar', 'apc_state_reader',
    'apc_settler', 'apc_door', 'apc_mover', 'apc_archiver']) AS name
WHERE to_regrole(name) IS NULL \gexec
-- The operator also looks after the tasks, effects and memories of agents, and makes their logins. The logins of agents are made
-- by `apc agent add`; that of the reference swarm's librarian is made here, because it also looks into the log of earlier runs for
-- what worked.
SELECT format('CREATE ROLE %I LOGIN PASSWORD %L IN ROLE %s', name, password, groups)
FROM (VALUES
    ('apc_gate', :'gate', 'apc_reader'),
    ('apc_log_writer', :'log_writer', 'apc_writer'),
    ('apc_operator', :'operator', 'apc_reader, apc_agent, apc_registrar, apc_settler, apc_mover, apc_archiver'),
    ('apc_web', :'web', 'apc_reader, apc_state_reader, apc_settler'),
    ('apc_a2a', :'door', 'apc_reader, apc_door'),
    ('apc_archiver_service', :'archiver', 'apc_reader, apc_archiver'),
    ('agent.librarian', :'librarian', 'apc_agent, apc_reader')
) AS wanted (name, password, groups)
WHERE password <> '' AND to_regrole(format('%I', name)) IS NULL \gexec
SQL

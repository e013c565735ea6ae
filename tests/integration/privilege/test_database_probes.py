"""The probe matrix of the database: what each role may do to each kind of relation, tried for real."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg
import pytest
from tests.integration.privilege.documented import check_table

ROLES = (
    "apc_reader",
    "apc_writer",
    "apc_agent",
    "apc_state_reader",
    "apc_door",
    "apc_mover",
    "apc_archiver",
    "apc_owner",
)
RELATIONS = """
SELECT name.oid::regclass::text AS name, name.relkind AS kind, name.relispartition AS is_segment,
       namespace.nspname AS schema,
       (SELECT is_append_only FROM apc_guard.log_tables AS listed WHERE listed.name = name.oid) AS is_append_only,
       ARRAY(SELECT attname::text FROM pg_attribute
             WHERE attrelid = name.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND attidentity = ''
             ORDER BY attnum) AS columns
FROM pg_class AS name JOIN pg_namespace AS namespace ON namespace.oid = relnamespace
WHERE nspname IN ('apc_log', 'apc_app', 'apc_keys', 'apc_guard') AND relkind IN ('r', 'p', 'v', 'm')
ORDER BY nspname, relname
"""
SEGMENT, SEGMENT_BESIDE = "a segment of a table of the log", "a segment of a projection beside the log"
LOG, PROJECTION, VIEW = "a table of the log", "a projection beside the log", "a view of the log"
KEYS, APP, GUARD = "apc_keys.subject_keys", "another table of apc_app", "a table of the guard"
STATES = "the tasks and effects in apc_app"
PUSH = "the receivers of push in apc_app"
REVISION, RECORDED = "apc_guard.alembic_version", "apc_log.log_events"
VERBS = ("read", "insert into", "update", "delete from", "truncate", "alter", "drop")
Seen = dict[tuple[str, str], dict[str, set[str]]]
"""(act, kind) -> role -> the answers that its relations gave."""

OTHER_ACTS = {
    "create a table in apc_log": "CREATE TABLE apc_log.probe (a int)",
    "create a table in apc_app": "CREATE TABLE apc_app.probe (a int)",
    "create a table in public": "CREATE TABLE public.probe (a int)",
    "create a temporary table": "CREATE TEMPORARY TABLE probe (a int)",
    "create a function in apc_log": "CREATE FUNCTION apc_log.probe() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "create a schema": "CREATE SCHEMA probe",
    "create a role": "CREATE ROLE apc_probe",
    "switch to apc_owner": "SET LOCAL ROLE apc_owner",
    "disable the triggers of the log": "ALTER TABLE apc_log.agent_packets DISABLE TRIGGER ALL",
    "disable triggers for the session": "SET LOCAL session_replication_role = replica",
    "disable the guard of DDL": "ALTER EVENT TRIGGER apc_guard_ddl DISABLE",
    "replace a function of the guard": (
        "CREATE OR REPLACE FUNCTION apc_guard.refuse_change() RETURNS trigger LANGUAGE plpgsql "
        "AS 'BEGIN RETURN NEW; END'"
    ),
    "start maintenance": "SELECT apc_guard.maintain('a probe')",
    # Who has no right to give warns and gives nothing: so it is tried out.
    "grant itself a privilege": (
        "GRANT DELETE ON apc_log.agent_packets TO PUBLIC; DELETE FROM apc_log.agent_packets WHERE false"
    ),
    "read a file of the server": "SELECT pg_read_file('PG_VERSION')",
    "run a program on the server": "COPY (SELECT 1) TO PROGRAM 'cat'",
}

READ = {("read", kind) for kind in (LOG, PROJECTION, VIEW, KEYS, GUARD, REVISION, RECORDED)}
EXPECTED: dict[str, set[tuple[str, str]]] = {
    "apc_reader": READ,
    "apc_writer": READ
    | {("insert into", kind) for kind in (LOG, PROJECTION, KEYS)}
    | {("update", PROJECTION), ("update", KEYS)},
    "apc_agent": {(verb, kind) for verb in ("read", "insert into", "update") for kind in (APP, STATES)},
    "apc_state_reader": {("read", STATES)},
    "apc_mover": set(),
    "apc_door": {(verb, PUSH) for verb in ("read", "insert into", "update", "delete from")},
}
"""What may be done; apc_owner's own rights are in the page's table alone, and in tests/persister/guard."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or view, and what kind of one."""

    name: str
    kind: str
    columns: list[str]

    @classmethod
    def of(cls, row: asyncpg.Record) -> "Relation":
        if row["name"] in (REVISION, RECORDED):
            kind = row["name"]
        elif row["name"] in ("apc_app.agent_tasks", "apc_app.agent_effects"):
            kind = STATES
        elif row["name"] == "apc_app.a2a_push":
            kind = PUSH
        elif row["schema"] != "apc_log":
            kind = {"apc_app": APP, "apc_keys": KEYS, "apc_guard": GUARD}[row["schema"]]
        elif row["kind"] in (b"v", b"m"):
            kind = VIEW
        else:
            kind = LOG if row["is_append_only"] else PROJECTION
        if row["is_segment"]:
            kind = SEGMENT if kind == LOG else SEGMENT_BESIDE
        return cls(row["name"], kind, row["columns"])

    def statements(self, verb: str) -> dict[str, str]:
        """Return what to try; an update column by column, because a right may be for one alone."""
        name, column = self.name, self.columns[0]
        match verb:
            case "read":
                return {"": f"SELECT FROM {name} LIMIT 0"}
            case "insert into":
                return {"": f'INSERT INTO {name} ("{column}") SELECT (NULL::{name})."{column}" WHERE false'}
            case "update":
                return {one: f'UPDATE {name} SET "{one}" = DEFAULT WHERE false' for one in self.columns}
            case "delete from":
                return {"": f"DELETE FROM {name} WHERE false"}
            case "truncate":
                return {"": f"TRUNCATE {name} CASCADE"}
            case "alter":
                change = (
                    "SET (autovacuum_enabled = true)"
                    if self.kind in (SEGMENT, SEGMENT_BESIDE)
                    else "ADD COLUMN probe int"
                )
                return {"": f"ALTER TABLE {name} {change}"}
            case _:
                return {"": f"DROP TABLE {name} CASCADE"}


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A superuser, who takes the roles on."""
    opened = await asyncpg.connect(postgres_url)
    yield opened
    await opened.close()


async def test_every_role_may_do_its_work_and_no_more(connection: asyncpg.Connection) -> None:
    relations = [Relation.of(row) for row in await connection.fetch(RELATIONS)]
    seen: Seen = {}
    for role in ROLES:
        for relation in relations:
            for verb in VERBS if relation.kind != VIEW else VERBS[:1]:
                answer = await answer_to(connection, role, relation.statements(verb))
                of_kind = seen.setdefault((verb, relation.kind), {})
                of_kind.setdefault(role, set()).add(answer)
    rows = [
        [f"{verb} {kind}", *(one_answer(answers[role], verb, kind) for role in ROLES)]
        for (verb, kind), answers in seen.items()
    ]
    for name, statement in OTHER_ACTS.items():
        rows.append([name, *[await answer_to(connection, role, {"": statement}) for role in ROLES]])
    for cells in rows:
        print(f"{cells[0]:48s} {' '.join(f'{cell:10s}' for cell in cells[1:])}")
    for role, expected in EXPECTED.items():
        allowed = {act for act, answers in seen.items() if answers[role] != {"refused"}}
        assert allowed == expected, role
    for cells in rows[len(seen) :]:
        for role, answer in zip(ROLES[:-1], cells[1:], strict=False):
            assert answer == ("allowed" if cells[0] == "create a temporary table" else "refused"), (cells[0], role)
    check_table("database probes", ["act", *ROLES], rows)


def one_answer(answers: set[str], verb: str, kind: str) -> str:
    """Return all relations of a kind must answer alike: a new table that does not is of another kind, or a mistake."""
    assert len(answers) == 1, f"{verb} {kind}: {sorted(answers)}"
    return next(iter(answers))


async def answer_to(connection: asyncpg.Connection, role: str, statements: dict[str, str]) -> str:
    """`allowed`, `refused`, or the columns that alone are allowed; nothing of it stays."""
    allowed = [name for name, statement in statements.items() if await is_allowed(connection, role, statement)]
    if not allowed:
        return "refused"
    return "allowed" if len(allowed) == len(statements) else f"{', '.join(allowed)} alone"


async def is_allowed(connection: asyncpg.Connection, role: str, statement: str) -> bool:
    """Return whether a role may; any other error is the probe's own."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        # Not SET ROLE: a role that was taken on by that may go back, and may become others.
        await connection.execute(f"SET LOCAL SESSION AUTHORIZATION {role}")
        await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError:
        return False
    else:
        return True
    finally:
        await transaction.rollback()

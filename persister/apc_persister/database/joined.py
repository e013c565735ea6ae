"""Makes schema apc_joined: the log of several databases as one, for readers, over postgres_fdw.

A table of shards is the rows of each shard from the database that has it. What is counted without a shard is the sum of
what each database counted. Views and functions are those of apc_log, above these tables.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from urllib.parse import parse_qsl, unquote, urlsplit

import asyncpg

from apc_log.errors import DatabasesUnjoinable
from apc_log.heads import AnyConnection

JOINED = "apc_joined"
_AWAY = "apc_away_{name}"
"""Server and schema of the foreign tables of a database."""
_READER = "apc_reader"
_KEYS = "subject_keys"
"""Table of apc_keys that readers need: what bodies are encrypted with."""
_OWNER = "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'apc_log.agent_packets'::regclass"
_IS_SUPERUSER = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
_EXTENSION = "CREATE EXTENSION IF NOT EXISTS postgres_fdw WITH SCHEMA public"
_HAS_EXTENSION = "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'postgres_fdw')"
_LEFT = """
SELECT format('DROP SERVER %I CASCADE', srvname) FROM pg_foreign_server WHERE srvname LIKE 'apc\\_away\\_%'
UNION ALL
SELECT format('DROP SCHEMA %I CASCADE', nspname) FROM pg_namespace
WHERE nspname = 'apc_joined' OR nspname LIKE 'apc\\_away\\_%'
"""
_TABLES = """
SELECT relname AS name, array_agg(attname::text ORDER BY attnum) AS columns
FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE attnum > 0 AND NOT attisdropped AND (
    relnamespace = 'apc_log'::regnamespace AND NOT relispartition
        AND (relkind IN ('r', 'p') OR relkind = 'v' AND relname = ANY ($1::text[]))
    OR relnamespace = 'apc_keys'::regnamespace AND relname = $2)
GROUP BY relname ORDER BY relname
"""
_VIEWS = """
SELECT relname AS name, pg_get_viewdef(oid) AS definition FROM pg_class
WHERE relnamespace = 'apc_log'::regnamespace AND relkind = 'v' AND relname <> ALL ($1::text[])
"""
_FUNCTIONS = """
SELECT proname AS name, string_agg(pg_get_functiondef(oid), E';\\n') AS definition FROM pg_proc
WHERE pronamespace = 'apc_log'::regnamespace AND provolatile <> 'v' GROUP BY proname
"""
_RIGHTS = """
SELECT DISTINCT format('GRANT SELECT ON apc_joined.%I TO %I', relname, rolname)
FROM pg_class CROSS JOIN LATERAL aclexplode(relacl) AS right_of JOIN pg_roles ON pg_roles.oid = right_of.grantee
WHERE privilege_type = 'SELECT' AND grantee <> relowner AND to_regclass(format('apc_joined.%I', relname)) IS NOT NULL
  AND (relnamespace = 'apc_log'::regnamespace OR relnamespace = 'apc_keys'::regnamespace AND relname = $1)
UNION
SELECT DISTINCT format('GRANT USAGE ON SCHEMA apc_joined TO %I', rolname)
FROM pg_namespace CROSS JOIN LATERAL aclexplode(nspacl) AS right_of JOIN pg_roles ON pg_roles.oid = right_of.grantee
WHERE nspname = 'apc_log' AND privilege_type = 'USAGE' AND grantee <> nspowner
"""
_SORTS = """
SELECT (SELECT concat_ws(' ', datcollate, datlocprovider) FROM pg_database WHERE datname = current_database()) AS here,
       (SELECT concat_ws(' ', datcollate, datlocprovider) FROM {schema}.pg_database
        WHERE datname = (SELECT option_value FROM pg_foreign_server, pg_options_to_table(srvoptions)
                         WHERE srvname = '{schema}' AND option_name = 'dbname')) AS there
"""
_NAMED = re.compile(r"\bapc_(?:log|keys)\.(\w+)")
_OF_GUARD = ("segments", "holds")
"""Views of apc_log over tables of the guard, which are read from each database as they are."""


# How tables that have no shard are put together; {parts} stands for the rows of all databases.

_AGGREGATES = """
CREATE AGGREGATE apc_joined.all_words(tsvector) (SFUNC = tsvector_concat, STYPE = tsvector, INITCOND = '');
CREATE AGGREGATE apc_joined.all_names(text[]) (SFUNC = array_cat, STYPE = text[], INITCOND = '{}');
"""
_RUN_CARDS = """
SELECT run_id, min(opened_at) AS opened_at, CASE WHEN count(ended_at) = count(*) THEN max(ended_at) END AS ended_at,
       max(updated_at) AS updated_at, (array_agg(team ORDER BY opened_at))[1] AS team,
       ARRAY(SELECT DISTINCT one FROM unnest(apc_joined.all_names(tags)) AS one ORDER BY one) AS tags,
       max(contract) AS contract,
       CASE WHEN sum(running) > 0 THEN 'running' WHEN bool_or('HALTED' = ANY (states)) THEN 'halted' ELSE 'closed' END
           AS outcome,
       ARRAY(SELECT DISTINCT one FROM unnest(apc_joined.all_names(states)) AS one ORDER BY one) AS states,
       sum(sessions)::integer AS sessions, sum(running)::integer AS running,
       sum(open_deliveries)::bigint AS open_deliveries, sum(packets) AS packets, sum(tokens) AS tokens,
       sum(cost) AS cost,
       ARRAY(SELECT DISTINCT one FROM unnest(apc_joined.all_names(agents)) AS one ORDER BY one LIMIT 1000) AS agents,
       (array_agg(input_shard ORDER BY opened_at))[1] AS input_shard,
       (array_agg(input_seq ORDER BY opened_at))[1] AS input_seq, apc_joined.all_words(words) AS words
FROM ({parts}) AS part GROUP BY run_id
"""
_PUT_TOGETHER: Mapping[str, str] = {
    "agent_days": """
SELECT agent_id, day, sum(packets)::bigint AS packets, sum(refused)::bigint AS refused, sum(handled)::bigint AS handled,
       sum(failed)::bigint AS failed, sum(tokens) AS tokens, sum(cost) AS cost
FROM ({parts}) AS part GROUP BY agent_id, day
""",
    "agent_latencies": """
SELECT agent_id, day, step, sum(deliveries)::bigint AS deliveries FROM ({parts}) AS part GROUP BY agent_id, day, step
""",
    "agent_presence": "SELECT agent_id, max(last_seen) AS last_seen FROM ({parts}) AS part GROUP BY agent_id",
    "contracts": """
SELECT DISTINCT ON (contract_hash) contract_hash, document, recorded_at FROM ({parts}) AS part
ORDER BY contract_hash, recorded_at
""",
    "holds": "SELECT DISTINCT ON (hold_id) * FROM ({parts}) AS part ORDER BY hold_id",
    "packet_minutes": """
SELECT minute, sum(packets)::bigint AS packets, sum(refused)::bigint AS refused FROM ({parts}) AS part GROUP BY minute
""",
    "protocol_sums": """
SELECT protocol_id, task_id, refusal_codes, sum(tasks)::bigint AS tasks, sum(evals)::bigint AS evals,
       sum(outcome_billionths)::bigint AS outcome_billionths, sum(drift_evals)::bigint AS drift_evals,
       sum(drift_billionths)::bigint AS drift_billionths
FROM ({parts}) AS part GROUP BY protocol_id, task_id, refusal_codes
""",
    "run_cards": _RUN_CARDS,
    "subject_keys": "{parts}",
    "summed_uses": "{parts}",
    "trouble_minutes": """
SELECT minute, issue, kind, code, rule, field, agent_id, sum(number)::bigint AS number, min(first_at) AS first_at,
       max(last_at) AS last_at
FROM ({parts}) AS part GROUP BY minute, issue, kind, code, rule, field, agent_id
""",
}
# The sums of a run at rest hold what one database has of it: a run that several know counts by its rows.
_UNSUMMED = """
UNION
SELECT run_id, max(judged_at) FROM (
    SELECT run_id, judged_at, 0 AS at_database FROM apc_log.run_changes{others}
) AS known GROUP BY run_id HAVING count(DISTINCT at_database) > 1
"""


@dataclass(frozen=True, slots=True)
class _Place:
    """Another database, as foreign tables."""

    name: str
    shards: Sequence[int]

    @property
    def schema(self) -> str:
        return _AWAY.format(name=self.name)


async def join_databases(home: AnyConnection, databases: Mapping[str, str], away: Mapping[int, str]) -> None:
    """Make schema apc_joined again, in one transaction: the log of this database and of others as one.

    Args:
        home: of the owner of apc_log, or a superuser.
        databases: name -> URL, as the server of `home` reaches it. Nothing else than a member of apc_reader is needed;
            a login with other rights reads as apc_reader too. Without any, the schema is dropped.
        away: shard -> name of the database that has it; `home` has the others.

    Raises:
        DatabasesUnjoinable: postgres_fdw is not there, a name is unknown, or a database differs in what orders text.
        asyncpg.PostgresError: the owner may not, or a database does not answer.
    """
    unknown = sorted(set(away.values()) - set(databases))
    if unknown:
        raise DatabasesUnjoinable(f"shards are in database {unknown[0]!r}, and APC_DATABASES does not name it")
    places = [_Place(name, sorted(one for one, at in away.items() if at == name)) for name in sorted(databases)]
    async with home.transaction():
        is_superuser = bool(await home.fetchval(_IS_SUPERUSER))
        if places:
            await _require_extension(home)
        for row in await home.fetch(_LEFT):
            await home.execute(row[0])
        if not places:
            return
        owner = str(await home.fetchval(_OWNER))
        await home.execute(f"CREATE SCHEMA {JOINED} AUTHORIZATION {_quoted(owner)}")
        for place in places:
            await _reach(home, place, databases[place.name], owner, is_superuser)
        tables = {row["name"]: row["columns"] for row in await home.fetch(_TABLES, list(_OF_GUARD), _KEYS)}
        await home.execute("SET LOCAL check_function_bodies = off")
        await home.execute(f"SET LOCAL ROLE {_quoted(owner)}")
        for place in places:
            await _import(home, place, list(tables))
            await _check_alike(home, place)
        await home.execute(_AGGREGATES)
        above = {row["name"]: row["definition"] for row in await home.fetch(_FUNCTIONS)}
        views = {row["name"]: row["definition"] for row in await home.fetch(_VIEWS, list(_OF_GUARD))}
        for name, columns in tables.items():
            await home.execute(f"CREATE VIEW {JOINED}.{name} AS {_table(name, columns, places)}")
        for name in _in_order({**above, **views}, tables):
            await home.execute(_above(name, above, views, places))
        for row in await home.fetch(_RIGHTS, _KEYS):
            await home.execute(row[0])
        await home.execute("RESET ROLE")


async def _require_extension(home: AnyConnection) -> None:
    if await home.fetchval(_HAS_EXTENSION):
        return
    try:
        async with home.transaction():
            await home.execute(_EXTENSION)
    except asyncpg.PostgresError as error:
        raise DatabasesUnjoinable(
            f"several databases are read by the extension postgres_fdw, which is not in the home database ({error}): "
            "let a superuser run CREATE EXTENSION postgres_fdw there, and GRANT USAGE ON FOREIGN DATA WRAPPER "
            "postgres_fdw to the owner of the log"
        ) from error


# Servers, mappings and foreign tables.

_SERVER_OPTIONS: Mapping[str, str] = {
    "fetch_size": "1000",
    "use_remote_estimate": "true",
    "updatable": "false",
    "truncatable": "false",
    "connect_timeout": "3",
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "application_name": "apc-joined",
    "options": f"-c role={_READER} -c default_transaction_read_only=on -c jit=off",
}
"""Without remote estimates the planner looks nothing up in a foreign table, and reads it whole."""
_OF_URL = frozenset(
    "sslmode sslrootcert sslcert sslkey sslcrl sslnegotiation target_session_attrs connect_timeout host port "
    "channel_binding gssencmode".split()
)


async def _reach(home: AnyConnection, place: _Place, url: str, owner: str, is_superuser: bool) -> None:
    server, mapping = options_of(url)
    if is_superuser:  # one that no password is asked of, as under `trust`, is an administrator's decision
        mapping["password_required"] = "false"
    await home.execute(
        f"CREATE SERVER {place.schema} FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({_options(server)});"
        f"CREATE USER MAPPING FOR {_quoted(owner)} SERVER {place.schema} OPTIONS ({_options(mapping)});"
        f"CREATE SCHEMA {place.schema} AUTHORIZATION {_quoted(owner)};"
        f"GRANT USAGE ON FOREIGN SERVER {place.schema} TO {_quoted(owner)}"
    )


async def _import(home: AnyConnection, place: _Place, tables: Sequence[str]) -> None:
    wanted = ", ".join(one for one in tables if one != _KEYS)
    into = f"FROM SERVER {place.schema} INTO {place.schema}"
    options = "OPTIONS (import_default 'false', import_generated 'false', import_not_null 'false')"
    try:
        await home.execute(
            f"IMPORT FOREIGN SCHEMA apc_log LIMIT TO ({wanted}) {into} {options};"
            f"IMPORT FOREIGN SCHEMA apc_keys LIMIT TO ({_KEYS}) {into} {options};"
            f"IMPORT FOREIGN SCHEMA pg_catalog LIMIT TO (pg_database) {into} {options}"
        )
    except asyncpg.PostgresError as error:
        reason = getattr(error, "detail", None) or error
        raise DatabasesUnjoinable(
            f"database {place.name!r} cannot be read from the home database: {reason}. "
            "Its URL in APC_DATABASES must lead there from the server of the home database too, and its user must be a "
            "member of apc_reader"
        ) from error


async def _check_alike(home: AnyConnection, place: _Place) -> None:
    """Raise DatabasesUnjoinable where the database sorts text in another way: rows of both are merged by it."""
    row = await home.fetchrow(_SORTS.replace("{schema}", place.schema))
    if row is None or row["here"] != row["there"]:
        there = "unknown" if row is None else row["there"]
        raise DatabasesUnjoinable(
            f"database {place.name!r} sorts text by {there}, and the home database by {row and row['here']}: make it "
            "with the same encoding and locale (CREATE DATABASE ... TEMPLATE template0 LOCALE ...)"
        )


def options_of(url: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of the server, and of the user's mapping, for the URL of a database.

    >>> server, mapping = options_of("postgresql://me:secret@db1:5433,db2/east?sslmode=require")
    >>> {name: server[name] for name in ("host", "port", "dbname", "sslmode")}
    {'host': 'db1,db2', 'port': '5433,5432', 'dbname': 'east', 'sslmode': 'require'}
    >>> mapping
    {'user': 'me', 'password': 'secret'}
    """
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    query = dict(parse_qsl(parts.query))
    server = {**_SERVER_OPTIONS, **{name: value for name, value in query.items() if name in _OF_URL}}
    if hosts:
        split = [_host_and_port(one) for one in hosts.split(",")]
        server["host"] = ",".join(host for host, _ in split)
        server["port"] = ",".join(port for _, port in split)
    server["dbname"] = unquote(parts.path.lstrip("/")) or query.get("database", query.get("dbname", ""))
    mapping = {
        "user": unquote(user) or query.get("user", ""),
        "password": unquote(password) or query.get("password", ""),
    }
    return server, {name: value for name, value in mapping.items() if value}


def _host_and_port(place: str) -> tuple[str, str]:
    """Return both parts of `host:port`, where the port may be missing and the host an IPv6 address in brackets."""
    found = re.fullmatch(r"\[(?P<six>[^\]]*)\](?::(?P<sixth>\d+))?|(?P<host>[^:]*)(?::(?P<port>\d+))?", place)
    if found is None:
        raise DatabasesUnjoinable(f"a URL of APC_DATABASES names the server {place!r}: write HOST:PORT")
    return unquote(found["six"] or found["host"] or ""), found["sixth"] or found["port"] or "5432"


def _options(options: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {_literal(value)}" for name, value in options.items())


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'" if "\\" in text else f"'{escaped}'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# The views.


def _table(name: str, columns: Sequence[str], places: Sequence[_Place]) -> str:
    """Return the query that puts the rows of a table together."""
    listed = ", ".join(columns)
    source = f"apc_keys.{name}" if name == _KEYS else f"apc_log.{name}"
    if name in _PUT_TOGETHER:
        parts = [f"SELECT {listed} FROM {source}", *(f"SELECT {listed} FROM {one.schema}.{name}" for one in places)]
        return _PUT_TOGETHER[name].replace("{parts}", " UNION ALL ".join(parts))
    if name == "shard_places":
        return f"SELECT {listed} FROM {source}"
    if "shard" not in columns:
        raise DatabasesUnjoinable(f"table apc_log.{name} has no shard, and nothing says how to read it joined")
    # Conditions inside the parts of a UNION would keep lookups out of them: the planner takes these into each part.
    holding = [place for place in places if place.shards]
    moved = sorted(shard for place in holding for shard in place.shards)
    parts = [f"SELECT {listed}, 0 AS at_database FROM {source}"]
    parts += [f"SELECT {listed}, {at} FROM {one.schema}.{name}" for at, one in enumerate(holding, 1)]
    here = [f"at_database = 0 AND shard <> ALL ({_array(moved)})"]
    here += [f"at_database = {at} AND shard = ANY ({_array(one.shards)})" for at, one in enumerate(holding, 1)]
    return f"SELECT {listed} FROM ({' UNION ALL '.join(parts)}) AS part WHERE {' OR '.join(here)}"


def _array(shards: Sequence[int]) -> str:
    return "'{" + ",".join(map(str, shards)) + "}'::integer[]"


def _above(name: str, functions: Mapping[str, str], views: Mapping[str, str], places: Sequence[_Place]) -> str:
    """Return the statement that makes a view or function of apc_log in apc_joined."""
    if name in functions:
        return _moved(functions[name])
    definition = _moved(views[name]).strip().removesuffix(";")
    if name == "unsummed_runs":
        others = "".join(
            f" UNION ALL SELECT run_id, judged_at, {at} FROM {one.schema}.run_changes"
            for at, one in enumerate(places, 1)
        )
        definition += _UNSUMMED.replace("{others}", others)
    return f"CREATE VIEW {JOINED}.{name} AS {definition}"


def _moved(definition: str) -> str:
    return _NAMED.sub(rf"{JOINED}.\1", definition)


def _in_order(above: Mapping[str, str], tables: Mapping[str, object]) -> Iterator[str]:
    """Yield views and functions, each behind those that it names."""
    graph = {
        name: {one for one in _NAMED.findall(definition) if one != name and one in above}
        for name, definition in above.items()
    }
    yield from TopologicalSorter(graph).static_order()

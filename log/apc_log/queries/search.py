"""Search over packets and runs: words of the content, ids and their ends, agents, schemas, codes.

Read from the tables that the log writer's follower fills after commit (migrations/sql/0114_search.sql). A search is one
tsquery: names and ids stand beside the words, as lexemes NAME=VALUE that no word can be.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import asyncpg
import orjson

from apc_contracts.content import content_line, document_of, title_of, typed_content
from apc_contracts.schemas import RegisteredSchema
from apc_log.body_encryption import is_sealed
from apc_log.errors import ArchiveTooLarge, ArchiveUnavailable, SearchUnusable
from apc_log.heads import Given, Reach, Sought, reads, released_in, released_until, sought
from apc_log.queries.packet_pages import PacketLine, bodies_here, lines_at
from apc_log.queries.packets import Position
from apc_log.registry import read_schemas

LONGEST_TEXT = 200
"""Characters of a text that is searched for."""
MOST_TERMS = 16
MOST_UNREAD = 10_000
"""Packets whose content cannot be searched are counted up to here."""
MOST_ARCHIVED = 2_000
"""Archived packets that one search looks at: they are brought back for it with their hops."""
_SHORTEST_BEGINNING = 3
"""Letters of a word from which on it may be the beginning of one: what begins with two is too much to read."""
_SHORTEST_END = 4
"""Characters of an id's end: fewer are the end of too many."""
_AT_ONCE = 64
"""Bodies in memory; each has 256 KiB at most."""
_BLANKS = str.maketrans(dict.fromkeys(string.punctuation, " "))
"""Divides words as `apc_log.words_of` does."""

_NEWEST = 10_000
"""Packets of the wanted time that are read one by one before the words are looked up: what is frequent fills a page
from few of them, while all its places would have to be collected from the index."""
_FEW = 5_000
"""Packets that are read and sorted; more are read in their order until the page is full."""
_BY_WORDS = "SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off; SET LOCAL work_mem = '64MB'"
"""How rare words are is not known before they are looked up: the planner would read the newest packets of all."""
_PROBE = "SELECT shard, seq, at FROM apc_log.packet_search WHERE words @@ {query} LIMIT $1"
# Not `$1 IS NULL OR`: with that, a plan for any arguments would read the index from its end.
_NARROWED = """
at >= coalesce($1::timestamptz, '-infinity') AND at < coalesce($2::timestamptz, 'infinity')
AND (at, shard, seq) < (coalesce($3::timestamptz, 'infinity'), coalesce($4::integer, 0), coalesce($5::bigint, 0))
ORDER BY at DESC, shard DESC, seq DESC
"""
# (SELECT …): made once, not for each packet.
_AMONG_NEWEST = f"""
SELECT shard, seq, at FROM (
    SELECT shard, seq, at, words FROM apc_log.packet_search WHERE {_NARROWED} LIMIT {_NEWEST}
) AS newest WHERE words @@ (SELECT {{query}}) ORDER BY at DESC, shard DESC, seq DESC LIMIT $6
"""
_HAS_OLDER = f"""
SELECT EXISTS (SELECT FROM apc_log.packet_search WHERE {_NARROWED} OFFSET {_NEWEST} LIMIT 1)
"""
_OF_FEW = f"""
SELECT shard, seq, at FROM unnest($7::integer[], $8::bigint[], $9::timestamptz[]) AS few(shard, seq, at)
WHERE {_NARROWED} LIMIT $6
"""
_OF_MANY = f"SELECT shard, seq, at FROM apc_log.packet_search WHERE words @@ {{query}} AND {_NARROWED} LIMIT $6"
_UNREAD = """
SELECT count(*) FROM (
    SELECT FROM apc_log.packet_search
    WHERE NOT is_read AND ($1::timestamptz IS NULL OR at >= $1) AND ($2::timestamptz IS NULL OR at < $2) LIMIT $3
) AS unread
"""
_BEHIND = """
SELECT coalesce(max(next_seq - 1 - coalesce(followed.seq, 0)), 0)
FROM apc_log.shards CROSS JOIN unnest($1::text[]) AS wanted(projection)
LEFT JOIN apc_log.followed USING (projection, shard)
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is searched for: all of it together. Without text every packet that the names fit."""

    text: str | None = None
    """Words of the content (each may be the beginning of one), ids or ends of ids, names."""
    run_id: str | None = None
    agent: str | None = None
    """The sender or a recipient."""
    schema: str | None = None
    code: str | None = None
    """Of the refusal."""
    since: datetime | None = None
    until: datetime | None = None

    @property
    def names(self) -> list[str]:
        """The lexemes that a packet must have."""
        given = {"run": self.run_id, "agent": self.agent, "schema": self.schema, "code": self.code}
        return [f"{name}={value}" for name, value in given.items() if value is not None]


class BeforeHit(NamedTuple):
    """The oldest packet of a page; the next one goes on before it."""

    at: datetime
    shard: int
    seq: int


@dataclass(frozen=True, slots=True)
class Found:
    """A page of packets, newest first: by the time of the verdict, then shard and seq."""

    packets: list[PacketLine]
    before: BeforeHit | None
    """Where the next page goes on; None at the end."""
    unread: int
    """Packets of that time whose content is encrypted or cannot be read, at most MOST_UNREAD + 1: they are found by
    names and ids alone."""
    archived_until: datetime | None = None
    """Packets up to this time are in the archive, and are not searched; None = all of that time are."""


def query_of(text: str | None, names: Sequence[str], values: list[object]) -> str:
    """Return the tsquery for column `words` as an SQL expression; what it is made of is added to `values`.

    Raises:
        SearchUnusable: nothing to search for, too long, too many words, or U+0000.
    """
    terms = [] if text is None else text.split()
    if text is not None and (len(text) > LONGEST_TEXT or len(terms) > MOST_TERMS or "\0" in text):
        raise SearchUnusable(f"search for at most {MOST_TERMS} words in {LONGEST_TEXT} characters, none of them U+0000")
    parts: list[str] = []
    for term in terms:
        words, end = _words_in(term), _end_in(term)
        values += [words, end]
        parts.append(f"(to_tsquery('simple', ${len(values) - 1}) || ${len(values)}::tsquery)")
    if names:
        values.append(" & ".join(map(_quoted, names)))
        parts.append(f"${len(values)}::tsquery")
    if not parts:
        raise SearchUnusable("there is nothing to search for: give words, an id, an agent, a schema or a code")
    return f"({' && '.join(parts)})"


def _words_in(term: str) -> str:
    """Return the words of a term as a tsquery; its last word may be the beginning of one."""
    words = [] if len(term) == len("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx") else term.translate(_BLANKS).split()
    if not words:
        return ""
    beginning = ":*" if len(words[-1]) >= _SHORTEST_BEGINNING else ""
    return " & ".join(map(_quoted, words)) + beginning


def _end_in(term: str) -> str:
    """Return the end of an id as a tsquery; ids are shown with an ellipsis before it."""
    end = term.lstrip("….").lower()
    return f"{_quoted(f'end={end[::-1]}')}:*" if len(end) >= _SHORTEST_END else ""


def _quoted(lexeme: str) -> str:
    escaped = lexeme.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


async def search_log(pool: asyncpg.Pool, wanted: Wanted, *, before: BeforeHit | None = None, limit: int = 50) -> Found:
    """Return the packets that fit everything that is wanted. Raises SearchUnusable as `query_of`.

    With an archive, a search of one run or from a time on looks at what was released too. Without such bounds, and
    where that would be more than MOST_ARCHIVED packets or cannot be read, `archived_until` says what was not searched.
    """
    narrowed: list[object] = [wanted.since, wanted.until, *(before or (None, None, None))]
    rows = await _among_newest(pool, wanted, narrowed, limit + 1)
    if len(rows) <= limit and await pool.fetchval(_HAS_OLDER, *narrowed):
        rows = await _among_all(pool, wanted, narrowed, limit + 1)
    unread = await pool.fetchval(_UNREAD, wanted.since, wanted.until, MOST_UNREAD + 1)
    hits = {BeforeHit(row["at"], row["shard"], row["seq"]) for row in rows}
    until = await released_until(pool)
    if until is not None and wanted.since is not None and wanted.since > until:
        until = None
    lines = {Position(row.shard, row.seq): row for row in await lines_at(pool, [Position(*one[1:]) for one in hits])}
    if until is not None and (archived := await _among_archived(pool, wanted, narrowed, limit + 1)) is not None:
        hits |= {hit for hit, _ in archived.hits}
        lines = {Position(line.shard, line.seq): line for _, line in archived.hits} | lines
        unread, until = unread + archived.unread, None
    found = sorted(hits, reverse=True)
    last = found[limit - 1] if len(found) > limit else None
    return Found([lines[Position(*one[1:])] for one in found[:limit]], last, unread, until)


class _Archived(NamedTuple):
    """What was found in the archive."""

    hits: list[tuple[BeforeHit, PacketLine]]
    unread: int


async def _among_archived(
    pool: asyncpg.Pool, wanted: Wanted, narrowed: Sequence[object], limit: int
) -> _Archived | None:
    """Return what fits in the archive; None where it is not looked at."""
    if wanted.run_id is None and wanted.since is None:
        return None
    of_run = Reach(since=wanted.since) if wanted.run_id is None else Reach(runs=[wanted.run_id])
    gone = await released_in(pool, of_run, is_thorough=True)
    times = [one for one in (wanted.until, narrowed[2]) if isinstance(one, datetime)]
    reach = Sought(
        MOST_ARCHIVED, False, wanted.run_id, wanted.agent, wanted.code, wanted.since, min(times, default=None)
    )
    if not gone:
        return _Archived([], 0)
    try:
        async with sought(pool, Reach(sought=reach), gone) as archive:
            if archive is None:
                return None
            values: list[object] = [*narrowed, limit]
            statement = _OF_MANY.format(query=query_of(wanted.text, wanted.names, values))
            rows = await archive.fetch(statement, *values)
            hits = [BeforeHit(row["at"], row["shard"], row["seq"]) for row in rows]
            lines = await lines_at(archive, [Position(*hit[1:]) for hit in hits])
            unread = await archive.fetchval(_UNREAD, wanted.since, wanted.until, MOST_UNREAD + 1)
            return _Archived(list(zip(hits, lines, strict=True)), unread)
    except (
        ArchiveTooLarge,
        ArchiveUnavailable,
        asyncpg.QueryCanceledError,
    ):  # what is here can be searched all the same
        return None


async def _among_newest(
    pool: asyncpg.Pool, wanted: Wanted, narrowed: Sequence[object], limit: int
) -> list[asyncpg.Record]:
    values: list[object] = [*narrowed, limit]
    statement = _AMONG_NEWEST.format(query=query_of(wanted.text, wanted.names, values))
    return list(await pool.fetch(statement, *values))


async def _among_all(
    pool: asyncpg.Pool, wanted: Wanted, narrowed: Sequence[object], limit: int
) -> list[asyncpg.Record]:
    values: list[object] = [*narrowed, limit]
    few = await _probe(pool, wanted)
    if len(few) > _FEW:
        statement = _OF_MANY.format(query=query_of(wanted.text, wanted.names, values))
        return list(await pool.fetch(statement, *values))
    columns = ([row[name] for row in few] for name in ("shard", "seq", "at"))
    return list(await pool.fetch(_OF_FEW, *values, *columns))


async def _probe(pool: asyncpg.Pool, wanted: Wanted) -> list[asyncpg.Record]:
    """Return what has these words and names, in no order; one more than `_FEW` when there are more."""
    values: list[object] = [_FEW + 1]
    statement = _PROBE.format(query=query_of(wanted.text, wanted.names, values))
    async with pool.acquire() as connection, connection.transaction(readonly=True):
        await connection.execute(_BY_WORDS)
        return list(await connection.fetch(statement, *values))


async def read_lag(pool: asyncpg.Pool, *projections: str) -> int:
    """Return how many entries of a shard the follower has yet to take into these projections, at most."""
    behind: int = await pool.fetchval(_BEHIND, projections)
    return behind


class Said(NamedTuple):
    """What a packet says."""

    schema: str | None
    line: str
    title: str
    """The field that its schema marks as title, else its first text, else the line."""


async def read_said(pool: asyncpg.Pool, places: Sequence[Position]) -> dict[Position, Said]:
    """Return what the packets at these places say.

    Those that are encrypted, cannot be read, or were released from the database are left out.
    """
    payloads: dict[Position, tuple[str, Mapping[str, Any]]] = {}
    for start in range(0, len(places), _AT_ONCE):
        for place, (packet_type, body) in (await bodies_here(pool, places[start : start + _AT_ONCE])).items():
            if (payload := _payload(body)) is not None:
                payloads[place] = (packet_type, payload)
    carried = {typed[0] for _, payload in payloads.values() if (typed := typed_content(payload)) is not None}
    schemas = await read_schemas(pool, carried) if carried else {}
    return {place: _said(packet_type, payload, schemas) for place, (packet_type, payload) in payloads.items()}


def _payload(body: bytes) -> Mapping[str, Any] | None:
    try:
        payload = None if is_sealed(body) else orjson.loads(body)["payload"]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return None
    return payload if isinstance(payload, dict) else None


def _said(packet_type: str, payload: Mapping[str, Any], schemas: Mapping[str, RegisteredSchema]) -> Said:
    line, typed = content_line(packet_type, payload, schemas), typed_content(payload)
    if typed is None:
        return Said(None, line, line)
    schema_id, content = typed
    return Said(schema_id, line, title_of(content, document_of(schema_id, schemas)) or line)


# Whole ids by their ends.

_IDS_THAT_END = {
    "session": """
SELECT session_id FROM apc_log.sessions WHERE session_id = $1 OR right(session_id, length($1)) = $1
ORDER BY session_id <> $1, session_id LIMIT $2
""",
    "run": """
SELECT DISTINCT run_id, run_id <> $1 FROM apc_log.sessions
WHERE right(run_id, length($1)) = $1 ORDER BY 2, 1 LIMIT $2
""",
    # Those that the follower has taken by the index, and the newest, which it has not, one by one.
    "packet": """
WITH places AS (
    SELECT shard, seq FROM apc_log.packet_search WHERE words @@ $3::tsquery
    UNION
    SELECT packet.shard, packet.seq FROM apc_log.shards JOIN apc_log.agent_packets AS packet USING (shard)
    WHERE packet.seq > coalesce((
        SELECT followed.seq FROM apc_log.followed
        WHERE followed.projection = 'packet_search' AND followed.shard = shards.shard), 0)
)
SELECT DISTINCT packet.packet_id::text AS packet_id
FROM places JOIN apc_log.agent_packets AS packet USING (shard, seq)
WHERE right(packet.packet_id::text, length($1)) = $1 ORDER BY packet_id LIMIT $2
""",
}


def _of_end(given: Given) -> Reach:
    return Reach() if given["kind"] == "packet" else Reach(sessions=())


@reads(_of_end, enough=lambda found, *_: bool(found))
async def ids_that_end(pool: asyncpg.Pool, kind: str, end: str, *, limit: int) -> list[str]:
    """Return the ids of sessions, runs or packets (`kind`: session, run, packet) that end so; the id `end` alone.

    Packets that were released are not looked through once there is one that was not.
    """
    values = [end, limit, *([_end_in(end)] if kind == "packet" else [])]
    found = [row[0] for row in await pool.fetch(_IDS_THAT_END[kind], *values)]
    return [end] if end in found else found

"""What goes wrong, in groups, and who knows of it: refusals, failures, dead letters, failed verifications."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

import asyncpg
import orjson

from apc_log.heads import places_away
from apc_log.queries.run_cards import ARCHIVED

TroubleKind = Literal["refusal", "failure", "dead_letter", "verification"]
Grouping = Literal["code", "rule", "agent", "field"]
GROUPS: Mapping[Grouping, tuple[str, ...]] = {
    "code": ("code",),
    "rule": ("code", "rule"),
    "agent": ("agent_id",),
    "field": ("code", "field"),
}
"""What tells the groups of one kind apart. By code a failure is told apart by its exception too."""


@dataclass(frozen=True, slots=True)
class IssueKey:
    """A group: a kind, and the columns that are equal in it; None = a column may be anything."""

    kind: TroubleKind
    code: str | None = None
    rule: str | None = None
    """Of a failure the exception."""
    field: str | None = None
    agent_id: str | None = None

    @property
    def columns(self) -> dict[str, str]:
        """The kind and the columns that are equal, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Somebody knows of an issue, up to a time: an entry `acknowledged` of the log."""

    id: str
    issue: IssueKey
    by: str
    note: str
    at: datetime
    seen_until: datetime
    login: str
    """The database login that wrote it."""
    shard: int
    seq: int


@dataclass(frozen=True, slots=True)
class Issue:
    """Troubles of one group within a time."""

    key: IssueKey
    count: int
    agents: int
    first_at: datetime
    last_at: datetime
    bins: tuple[int, ...]
    """How many in each of the equal parts of the time."""
    is_open: bool
    """Something of it came after the last acknowledgement, or there is none."""
    acknowledged: Acknowledgement | None


@dataclass(frozen=True, slots=True)
class TroubleFilters:
    """Which troubles are meant. `since` is within the time, `until` is not."""

    since: datetime
    until: datetime
    kinds: Sequence[TroubleKind] = ()
    """() = all."""
    code: str | None = None
    rule: str | None = None
    field: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    hides_texts: bool = False
    """Exceptions and fields are not told apart, and not looked for: they come from what packets say."""

    @property
    def arguments(self) -> tuple[object, ...]:
        """Arguments $1 to $9 of the statements."""
        kinds = list(self.kinds) or None
        named = (self.code, self.rule, self.field, self.agent_id, self.run_id)
        return (self.since, self.until, kinds, *named, self.hides_texts)


_RULE = "CASE WHEN $9 AND kind = 'failure' THEN '' ELSE rule END"
_FIELD = "CASE WHEN $9 THEN '' ELSE field END"
_GROUP_FITS = f"""
($3::text[] IS NULL OR kind = ANY ($3)) AND ($4::text IS NULL OR code = $4)
AND ($5::text IS NULL OR {_RULE} = $5) AND ($6::text IS NULL OR {_FIELD} = $6)
AND ($7::text IS NULL OR agent_id = $7)
"""
_NARROWED = f"at >= $1 AND at < $2 AND ($8::text IS NULL OR run_id = $8) AND {_GROUP_FITS}"
_ACKNOWLEDGEMENTS = """
SELECT DISTINCT ON (detail ->> 'id') detail ->> 'id' AS id, detail -> 'issue' AS issue, detail ->> 'by' AS by,
       detail ->> 'note' AS note, recorded_at AS at, (detail ->> 'seen_until')::timestamptz AS seen_until,
       actor AS login, shard, seq
FROM apc_log.log_events WHERE kind = 'acknowledged' ORDER BY detail ->> 'id', shard
"""
# First the finest groups: an acknowledgement may cover some of those that a coarser group holds.
_SINGLE = f"""
SELECT kind, code, rule, field, agent_id, at, 1 AS number, at AS first_at, at AS last_at
FROM apc_log.troubles WHERE {_NARROWED}
"""
# Whole minutes, and single troubles of those minutes that an edge of the time or of one of its parts cuts.
_COUNTED = f"""
WITH cuts AS MATERIALIZED (
    SELECT DISTINCT date_trunc('minute', $1::timestamptz + ($2::timestamptz - $1) * (place / $10::float8), 'UTC') AS cut
    FROM generate_series(0, $10::integer) AS place
)
SELECT kind, code, rule, field, agent_id, minute AS at, number, first_at, last_at FROM apc_log.trouble_minutes
WHERE minute >= $1 AND minute < $2 AND minute NOT IN (SELECT cut FROM cuts) AND {_GROUP_FITS}
UNION ALL
SELECT single.* FROM cuts CROSS JOIN LATERAL (
    {_SINGLE} AND at >= cut AND at < cut + interval '1 minute' OFFSET 0
) AS single
"""
_ISSUES = """
WITH finest AS MATERIALIZED (
    SELECT kind, code, rule, field, agent_id, least($10, width_bucket(
               date_part('epoch', at), date_part('epoch', $1::timestamptz), date_part('epoch', $2::timestamptz), $10))
               AS bin,
           sum(number) AS number, min(first_at) AS first_at, max(last_at) AS last_at
    FROM ({counted}) AS counted GROUP BY 1, 2, 3, 4, 5, 6
), known AS MATERIALIZED (
    SELECT detail -> 'issue' AS issue, max((detail ->> 'seen_until')::timestamptz) AS seen_until
    FROM apc_log.log_events WHERE kind = 'acknowledged' GROUP BY 1
), covered AS (
    SELECT kind, code, rule, field, agent_id, max(last_at) > coalesce((
               SELECT max(known.seen_until) FROM known WHERE jsonb_build_object(
                   'kind', kind, 'code', code, 'rule', rule, 'field', field, 'agent_id', agent_id) @> known.issue),
               '-infinity') AS is_open
    FROM finest GROUP BY 1, 2, 3, 4, 5
), binned AS (
    SELECT {columns}, bin, sum(number) AS number, min(first_at) AS first_at, max(last_at) AS last_at
    FROM finest GROUP BY {grouped}, bin
), grouped AS (
    SELECT {grouped}, sum(number)::bigint AS count, min(first_at) AS first_at, max(last_at) AS last_at,
           array_agg(bin) AS bins, array_agg(number::bigint) AS numbers
    FROM binned GROUP BY {grouped}
), opened AS (
    SELECT {columns}, bool_or(is_open) AS is_open, count(DISTINCT agent_id) AS agents FROM covered GROUP BY {grouped}
)
SELECT grouped.*, opened.is_open, opened.agents FROM grouped JOIN opened USING ({grouped})
WHERE $11::boolean IS NULL OR opened.is_open = $11
ORDER BY opened.is_open DESC, count DESC, last_at DESC, {grouped} LIMIT $12
"""
# The planner takes the columns for independent, and would sort all rows by their texts.
_BY_HASH = "SET LOCAL work_mem = '64MB'; SET LOCAL enable_sort = off"
_TEXTS = {"rule": _RULE, "field": _FIELD}


def _statement(by: Grouping, counted: str) -> str:
    columns = [f"{_TEXTS.get(name, name)} AS {name}" for name in ("kind", *GROUPS[by])]
    names = ["kind", *GROUPS[by]]
    if by == "code":  # the exceptions of failures
        columns.append(f"CASE WHEN kind = 'failure' THEN {_RULE} END AS exception")
        names.append("exception")
    grouped = ", ".join(f"k_{name}" for name in names)
    keyed = ", ".join(
        f"coalesce({one.rpartition(' AS ')[0]}, '') AS k_{name}" for one, name in zip(columns, names, strict=True)
    )
    return _ISSUES.format(counted=counted, columns=keyed, grouped=grouped)


_STATEMENTS: Mapping[Grouping, str] = {by: _statement(by, _COUNTED) for by in GROUPS}
_STATEMENTS_OF_RUN: Mapping[Grouping, str] = {by: _statement(by, _SINGLE) for by in GROUPS}
"""Troubles of a run are few, and not counted by minute."""


async def list_issues(
    pool: asyncpg.Pool,
    filters: TroubleFilters,
    by: Grouping = "code",
    *,
    is_open: bool | None = None,
    bins: int = 24,
    limit: int = 100,
) -> list[Issue]:
    """Return the groups of troubles: open ones first, then the most frequent."""
    statements = _STATEMENTS if filters.run_id is None else _STATEMENTS_OF_RUN
    async with pool.acquire() as connection, connection.transaction(readonly=True):
        await connection.execute(_BY_HASH)
        rows = await connection.fetch(statements[by], *filters.arguments, bins, is_open, limit)
    known = {}
    for one in sorted(await list_acknowledgements(pool), key=lambda one: one.at):
        known[one.issue] = one
    return [_issue(row, by, bins, known) for row in rows]


def _issue(row: asyncpg.Record, by: Grouping, bins: int, known: Mapping[IssueKey, Acknowledgement]) -> Issue:
    columns = {name: row[f"k_{name}"] for name in GROUPS[by]}
    if by == "code" and row["k_kind"] == "failure":
        columns["rule"] = row["k_exception"]
    key = IssueKey(row["k_kind"], **columns)
    numbers = dict(zip(row["bins"], row["numbers"], strict=True))
    return Issue(
        key,
        row["count"],
        row["agents"],
        row["first_at"],
        row["last_at"],
        tuple(numbers.get(place, 0) for place in range(1, bins + 1)),
        row["is_open"],
        known.get(key),
    )


async def list_acknowledgements(pool: asyncpg.Pool) -> list[Acknowledgement]:
    """Return every acknowledgement, as the log has it."""
    return [
        Acknowledgement(**{**row, "issue": IssueKey(**orjson.loads(row["issue"]))})
        for row in await pool.fetch(_ACKNOWLEDGEMENTS)
    ]


_LAG = """
SELECT coalesce(sum(head.next_seq - 1 - coalesce(followed.seq, 0)), 0)::bigint FROM apc_log.shards AS head
LEFT JOIN apc_log.followed ON followed.shard = head.shard AND followed.projection = 'troubles'
"""


async def troubles_behind(pool: asyncpg.Pool) -> int:
    """Return how many entries of the log are not among the troubles yet."""
    return int(await pool.fetchval(_LAG))


# Single troubles, newest first, each with what the log says of it.

_OCCURRENCES = f"""
WITH found AS (
    SELECT shard, seq, kind, at, code, {_RULE} AS rule, {_FIELD} AS field, agent_id, session_id, run_id, packet_id,
           packet_type
    FROM apc_log.troubles
    WHERE {_NARROWED} AND ($10::timestamptz IS NULL OR (at, shard, seq) < ($10, $11, $12))
    ORDER BY at DESC, shard DESC, seq DESC LIMIT $13
)
SELECT found.*,
       coalesce(packet.refusal ->> 'message', apc_log.document_in(packet.body_stored) #>> '{{payload,message}}',
                hop.metadata #>> '{{refusal,message}}', hop.metadata ->> 'error', conflict.reason) AS message,
       coalesce(packet.refusal, hop.metadata -> 'refusal')::text AS refusal
FROM found
LEFT JOIN apc_log.agent_packets AS packet ON packet.shard = found.shard AND packet.seq = found.seq
LEFT JOIN apc_log.packet_events AS hop ON hop.shard = found.shard AND hop.seq = found.seq
LEFT JOIN apc_log.packet_conflicts AS conflict ON conflict.shard = found.shard AND conflict.seq = found.seq
ORDER BY found.at DESC, found.shard DESC, found.seq DESC
"""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that went wrong; (shard, seq) is its entry."""

    shard: int
    seq: int
    kind: TroubleKind
    at: datetime
    code: str
    rule: str
    field: str
    agent_id: str
    session_id: str | None
    run_id: str | None
    packet_id: UUID | None
    """Of a failure the packet that was being handled."""
    packet_type: str | None
    message: str | None
    """What the gate, the handler or the log says of it; `ARCHIVED` where that is in the archive."""
    refusal: dict[str, object] | None = None


async def list_troubles(
    pool: asyncpg.Pool, filters: TroubleFilters, *, after: tuple[datetime, int, int] | None = None, limit: int = 50
) -> list[Trouble]:
    """Return single troubles, newest first, behind `after` (at, shard, seq)."""
    rows = await pool.fetch(_OCCURRENCES, *filters.arguments, *(after or (None, None, None)), limit)
    away = await places_away(pool, [(row["shard"], row["seq"]) for row in rows if row["message"] is None])
    troubles = []
    for row in rows:
        refusal = None if row["refusal"] is None else orjson.loads(row["refusal"])
        message = ARCHIVED if (row["shard"], row["seq"]) in away else row["message"]
        troubles.append(Trouble(**{**row, "refusal": refusal, "message": message}))
    return troubles


# Somebody knows of an issue: an entry of every shard's log, by the one function that may write it.

_ACKNOWLEDGE = "SELECT apc_guard.record_acknowledgement($1::text::jsonb, $2, $3, $4)"
LONGEST_NOTE = 300


async def acknowledge(pool: asyncpg.Pool, issue: IssueKey, note: str, by: str, seen_until: datetime) -> str:
    """Record that somebody knows of an issue, as far as they have seen it; return the id.

    Raises asyncpg.InvalidParameterValueError for what is none, InsufficientPrivilegeError for who may not.
    """
    return str(await pool.fetchval(_ACKNOWLEDGE, orjson.dumps(issue.columns).decode(), note, by, seen_until))

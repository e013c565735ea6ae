"""Runs by name: a card a run, with its team, tags, outcome and figures; filtered, and sorted over all of them.

Read from table run_cards, which the log writer's follower fills after commit (migrations/sql/0114_search.sql).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

import asyncpg

from apc_log.heads import places_away
from apc_log.queries.packets import Position
from apc_log.queries.search import query_of, read_said

Outcome = Literal["running", "closed", "halted"]
SortedBy = Literal["changed", "started", "duration", "cost", "tokens", "packets", "agents", "team", "outcome"]
_DURATION = "extract(epoch FROM coalesce(ended_at, updated_at) - opened_at)::double precision"
_KEYS: Mapping[SortedBy, tuple[str, str]] = {
    "changed": ("updated_at", "timestamptz"),
    "started": ("opened_at", "timestamptz"),
    "duration": (_DURATION, "double precision"),
    "cost": ("coalesce(cost, -1)", "double precision"),
    "tokens": ("coalesce(tokens, -1)", "double precision"),
    "packets": ("coalesce(packets, -1)", "double precision"),
    "agents": ("cardinality(agents)::double precision", "double precision"),
    "team": ("coalesce(team, '') COLLATE \"C\"", "text"),
    "outcome": ('outcome COLLATE "C"', "text"),
}
"""What a list is sorted by -> its expression and type; runs that are equal in it follow by their id."""
SORTS = tuple(_KEYS)
_TYPES: Mapping[str, type] = {"timestamptz": datetime, "double precision": float, "text": str}
_CARDS = """
SELECT run_id, opened_at, ended_at, updated_at, team, tags, contract, outcome, states, sessions, running,
       open_deliveries, packets, tokens, cost, agents, input_shard, input_seq, {key} AS key
FROM apc_log.run_cards
WHERE {found} AND ($1::timestamptz IS NULL OR opened_at >= $1) AND ($2::timestamptz IS NULL OR opened_at < $2)
  AND ($3::text IS NULL OR outcome = $3) AND ($4::text IS NULL OR $4 = ANY (states))
  AND ($5::{type} IS NULL OR ({key}, run_id) {sign} ($5, $6::text))
ORDER BY {key} {order}, run_id {order} LIMIT $7
"""
_AT = "SELECT *, NULL AS key FROM apc_log.run_cards WHERE run_id = ANY ($1::text[])"


@dataclass(frozen=True, slots=True)
class RunsWanted:
    """Which runs: all of it together. Without anything, every run."""

    text: str | None = None
    """Words of the input, the team, tags and agents; the run's id or its end."""
    team: str | None = None
    contract: str | None = None
    tag: str | None = None
    """KEY=VALUE, as the run was given it."""
    agent: str | None = None
    outcome: Outcome | None = None
    state: str | None = None
    """One of its sessions is in it."""
    since: datetime | None = None
    until: datetime | None = None
    """When it was started: from `since` on, before `until`."""

    @property
    def names(self) -> list[str]:
        """The lexemes that a card must have."""
        given = {"team": self.team, "contract": self.contract, "tag": self.tag, "agent": self.agent}
        return [f"{name}={value}" for name, value in given.items() if value is not None]


@dataclass(frozen=True, slots=True)
class RunCard:
    """What a run is called, and what its sessions add up to."""

    run_id: str
    opened_at: datetime
    ended_at: datetime | None
    updated_at: datetime
    team: str | None
    title: str | None
    """One line of its input; None before it came, where it has no text, and where it is encrypted; `ARCHIVED` where it
    is in the archive."""
    tags: list[str]
    """KEY=VALUE."""
    contract: str | None
    outcome: Outcome
    states: list[str]
    sessions: int
    running: int
    open_deliveries: int
    packets: float | None
    tokens: float | None
    cost: float | None
    agents: list[str]
    key: datetime | float | str | None
    """What the list is sorted by."""


ARCHIVED = "(in the archive)"
"""Stands for a text of a packet that was released from the database."""


class AfterRun(NamedTuple):
    """The last run of a page; the next one goes on behind it."""

    key: datetime | float | str
    run_id: str


def key_type(sorted_by: SortedBy) -> type:
    """Return the type of what a list is sorted by."""
    return _TYPES[_KEYS[sorted_by][1]]


async def page_of_cards(
    pool: asyncpg.Pool,
    wanted: RunsWanted,
    *,
    sorted_by: SortedBy = "changed",
    descending: bool = True,
    after: AfterRun | None = None,
    limit: int = 50,
) -> list[RunCard]:
    """Return the runs that fit, behind `after`. Raises SearchUnusable as `apc_log.queries.search.query_of`."""
    key, kind = _KEYS[sorted_by]
    values: list[object] = [wanted.since, wanted.until, wanted.outcome, wanted.state, *(after or (None, None)), limit]
    is_searched = wanted.text is not None or bool(wanted.names)
    found = f"words @@ {query_of(wanted.text, wanted.names, values)}" if is_searched else "true"
    sign, order = ("<", "DESC") if descending else (">", "ASC")
    statement = _CARDS.format(key=key, type=kind, found=found, sign=sign, order=order)
    return await _cards(pool, await pool.fetch(statement, *values))


async def cards_of(pool: asyncpg.Pool, run_ids: Sequence[str]) -> dict[str, RunCard]:
    """Return the cards of these runs by their id; a run that the follower has not taken yet has none."""
    rows = await pool.fetch(_AT, list(run_ids))
    return {card.run_id: card for card in await _cards(pool, rows)}


async def _cards(pool: asyncpg.Pool, rows: Sequence[asyncpg.Record]) -> list[RunCard]:
    places = [Position(row["input_shard"], row["input_seq"]) for row in rows if row["input_seq"] is not None]
    said = await read_said(pool, places)
    archived = await places_away(pool, [place for place in places if place not in said])
    cards = []
    for row in rows:
        one = said.get(Position(row["input_shard"], row["input_seq"]))
        fields = {name: row[name] for name in RunCard.__slots__ if name != "title"}
        title = one.title or None if one is not None else None
        is_away = (row["input_shard"], row["input_seq"]) in archived
        cards.append(RunCard(**fields, title=ARCHIVED if is_away else title))
    return cards

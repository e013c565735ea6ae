"""Runs and sessions as the API returns them, and lists of both."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import asyncpg
from pydantic import Field

from apc_contracts.contract.contract import Contract
from apc_contracts.contract.omissions import omissions
from apc_contracts.payloads.budget_expression import RESOURCES
from apc_contracts.session.document import SessionDocument
from apc_log.queries.run_cards import SORTS, AfterRun, Outcome, RunCard, RunsWanted, cards_of, key_type, page_of_cards
from apc_log.queries.search import read_lag
from apc_log.queries.session_pages import RunFigures, SessionPlace, figures_of_runs, find_session, page_of_sessions
from apc_log.session_loading import contract_of_session
from apc_web.cursors import microseconds, read_cursor, time_of, write_cursor
from apc_web.errors import not_found
from apc_web.models import NEXT, ApiModel, NamedCount, Sender, Shown, column


class RunSummary(ApiModel):
    """One run: what it is called, and what its sessions add up to."""

    run_id: Shown[str]
    team: Shown[str | None]
    """The team that it was started with; null where its START names none."""
    title: str | None
    """One line of its input; null where it has none, or it is encrypted."""
    tags: list[str]
    """What it was given at its start, as KEY=VALUE."""
    contract: Shown[str | None]
    outcome: Shown[Outcome]
    """running until every session has ended; halted when one of them was."""
    opened_at: Shown[datetime]
    ended_at: Shown[datetime | None]
    agents: Shown[int]
    """Members of its sessions."""
    sessions: Shown[int]
    running: Shown[int]
    """Sessions that have not ended."""
    states: Shown[list[NamedCount]]
    """How many sessions are in each state."""
    session_ids: Shown[list[str]]
    """The sessions that changed last, at most 20."""
    spent: Shown[dict[str, float]]
    """packets, tokens and cost of all its sessions."""
    open_deliveries: Shown[int]
    updated_at: Shown[datetime]


class RunPage(ApiModel):
    """Runs as they are sorted; those that are equal in it by their id."""

    items: Shown[list[RunSummary]]
    next: Shown[str | None] = NEXT
    behind: Shown[int]
    """Entries of the log that the list does not know yet: runs that began with them are missing."""


class SessionSummary(ApiModel):
    """One session in a list."""

    session_id: Shown[str]
    run_id: Shown[str]
    task_id: Shown[str]
    shard: Shown[int]
    state: Shown[str]
    run_phase: Shown[str]
    is_terminal: Shown[bool]
    is_paused: Shown[bool]
    round: Shown[int]
    generation: Shown[int]
    open_deliveries: Shown[int]
    spent: Shown[dict[str, float]]
    opened_at: Shown[datetime]
    updated_at: Shown[datetime]
    halt_reason: str | None
    left_out: Shown[list[str]]
    """What its contract leaves out of the usual checks, a sentence each."""


class SessionPage(ApiModel):
    """Sessions, the one that changed last first."""

    items: Shown[list[SessionSummary]]
    next: Shown[str | None] = NEXT


class BudgetPart(ApiModel):
    """What one task may spend of a resource; task '' is the session's own part."""

    task: Shown[str]
    resource: Shown[str]
    """packets, tokens, cost or wall_ms."""
    limit: Shown[float | None]
    spent: Shown[float | None]
    """What was charged."""
    left: Shown[float]
    refused: Shown[float]
    """Reported as spent beside it, and not charged."""


class SessionMember(ApiModel):
    """An agent of a session."""

    agent_id: Shown[str]
    swarm: Shown[str | None]
    is_live: Shown[bool]
    """A barrier waits for it."""


class SessionDeadline(ApiModel):
    """A timer of a session. It stands still while the session is paused."""

    kind: Shown[str]
    due: Shown[datetime]


class HeldPacketSummary(ApiModel):
    """A packet that is held until a barrier or until RESUME."""

    packet_id: Shown[UUID]
    packet_type: Shown[str]
    sender: Shown[Sender]
    since: Annotated[Shown[datetime], column("since", "judged_at")]


class SessionWait(ApiModel):
    """What a session waits for."""

    kind: Shown[str]
    """paused, question, barrier, acknowledgement, delivery, verification, held, deadline or dead_letter."""
    words: Shown[str]
    """One sentence."""
    due: Shown[datetime | None] = None
    agents: Shown[list[str]] = Field(default_factory=list)
    packet_ids: Shown[list[UUID]] = Field(default_factory=list)


class StaleDecisionSummary(ApiModel):
    """A DECISION that rests on a retracted packet."""

    packet_id: UUID
    ground_id: UUID
    """What it rests on: retracted, or stale itself."""
    words: str
    """One sentence, with the command that shows what else rests on it."""


class MachineState(ApiModel):
    """A state of a machine, in the order of the contract."""

    name: Shown[str]
    run_phase: Shown[str | None]
    is_terminal: Shown[bool]


class MachineEdge(ApiModel):
    """A transition that the machine allows."""

    event: Shown[str]
    from_state: Shown[str]
    to_state: Shown[str]


class SessionMachine(ApiModel):
    """The machine that a session or a packet moves through."""

    states: Shown[list[MachineState]]
    edges: Shown[list[MachineEdge]]


class SessionMove(ApiModel):
    """A transition or a barrier that happened."""

    seq: Shown[int]
    at: Annotated[Shown[datetime], column("at", "recorded_at")]
    event: Shown[str]
    from_state: Shown[str]
    to_state: Shown[str]
    round: Shown[int]
    generation: Shown[int]
    step: Shown[int]
    cause_packet_id: Shown[UUID]


class SessionMoves(ApiModel):
    """The moves of a session, oldest first."""

    items: Shown[list[SessionMove]]
    next: Shown[str | None] = NEXT


class GenerationScore(ApiModel):
    """An EVAL of a session."""

    seq: Shown[int]
    at: Annotated[Shown[datetime], column("at", "judged_at")]
    packet_id: Shown[UUID]
    agent: Annotated[Shown[str], column("agent", "sender_agent_id")]
    swarm: Annotated[Shown[str], column("swarm", "sender_swarm_id")]
    round: Shown[int]
    generation: Shown[int]
    verdict: Shown[str]
    outcome: Shown[float | None]
    drift_risk: Shown[float | None]
    """Null where the body is sealed."""


class GenerationTransfer(ApiModel):
    """A TRANSFER between swarms."""

    seq: Shown[int]
    at: Annotated[Shown[datetime], column("at", "judged_at")]
    packet_id: Shown[UUID]
    round: Shown[int]
    generation: Shown[int]
    protocol_id: Shown[str]
    from_swarm: Shown[str | None]
    to_swarm: Shown[str | None]
    verdict: Shown[str]
    refusal_code: Shown[str | None]
    """Of the final verdict."""


class SessionScores(ApiModel):
    """Scores by generation and swarm, and the transfers between them; in the order of the log, at most 5,000 each."""

    scores: Shown[list[GenerationScore]]
    transfers: Shown[list[GenerationTransfer]]
    is_cut: Shown[bool]


RunSort = Literal[
    "changed",
    "-changed",
    "started",
    "-started",
    "duration",
    "-duration",
    "cost",
    "-cost",
    "tokens",
    "-tokens",
    "packets",
    "-packets",
    "agents",
    "-agents",
    "team",
    "-team",
    "outcome",
    "-outcome",
]
"""What runs are sorted by; the minus is downwards."""
_SHOWN_SESSIONS = 20
"""Sessions that a run names: the newest ones."""


async def runs_page(pool: asyncpg.Pool, wanted: RunsWanted, sort: RunSort, after: str | None, limit: int) -> RunPage:
    """Return the runs that fit, sorted. Raises ApiError for a bad cursor, SearchUnusable for a bad text."""
    descending = sort.startswith("-")
    sorted_by = next(one for one in SORTS if one == sort.removeprefix("-"))
    filters = {**asdict(wanted), "sort": sort}
    place = _run_place(read_cursor(after, "runs", filters, _WRITTEN[key_type(sorted_by)], str))
    cards = await page_of_cards(pool, wanted, sorted_by=sorted_by, descending=descending, after=place, limit=limit + 1)
    shown = cards[:limit]
    cursor = None
    if len(cards) > limit:
        key = shown[-1].key
        assert key is not None
        cursor = write_cursor(
            "runs", filters, microseconds(key) if isinstance(key, datetime) else key, shown[-1].run_id
        )
    behind = await read_lag(pool, "run_cards")
    return RunPage(items=await summaries_of(pool, shown), next=cursor, behind=behind)


_WRITTEN: Mapping[type, type] = {datetime: int, float: float, str: str}
"""How a cursor holds what a list is sorted by."""


def _run_place(values: list[Any] | None) -> AfterRun | None:
    if values is None:
        return None
    key, run_id = values
    return AfterRun(time_of(key) if isinstance(key, int) else key, run_id)


async def summaries_of(pool: asyncpg.Pool, cards: Sequence[RunCard]) -> list[RunSummary]:
    """Return runs with their sessions as they are now, in the order of the cards."""
    figures = {row.run_id: row for row in await figures_of_runs(pool, [card.run_id for card in cards])}
    return [_run(figures[card.run_id], card) for card in cards if card.run_id in figures]


async def one_run(pool: asyncpg.Pool, run_id: str) -> RunSummary:
    """Return a run. Raises ApiError when the log holds none of that name."""
    rows = await figures_of_runs(pool, [run_id])
    if not rows:
        raise not_found(f"run {run_id!r}", "`GET /runs` lists them", "run_id")
    return _run(rows[0], (await cards_of(pool, [run_id])).get(run_id))


async def sessions_page(
    pool: asyncpg.Pool, default: Contract, run_id: str | None, running: bool | None, after: str | None, limit: int
) -> SessionPage:
    """Return sessions, the one that changed last first. Raises ApiError for a bad cursor."""
    filters = {"run_id": run_id, "running": running}
    last = read_cursor(after, "sessions", filters, int, str)
    before = None if last is None else (time_of(last[0]), last[1])
    rows = await page_of_sessions(pool, run_id=run_id, only_running=running, before=before, limit=limit + 1)
    shown = rows[:limit]
    cursor = None
    if len(rows) > limit:
        cursor = write_cursor("sessions", filters, microseconds(shown[-1].updated_at), shown[-1].session_id)
    left_out = {row.document.contract_hash: await _left_out(pool, row, default) for row in shown}
    return SessionPage(items=[session_summary(row, left_out[row.document.contract_hash]) for row in shown], next=cursor)


_MOST_KEPT = 1_000
_kept: dict[str, tuple[str, ...]] = {}
"""SHA-256 of a contract -> what it leaves out: contracts never change."""


async def _left_out(pool: asyncpg.Pool, place: SessionPlace, default: Contract) -> tuple[str, ...]:
    digest = place.document.contract_hash
    known = _kept.get(digest)
    if known is None:
        contract = await contract_of_session(pool, digest, default)
        known = omissions(contract)
        if contract.hash.hex() == digest:
            while len(_kept) >= _MOST_KEPT:
                del _kept[next(iter(_kept))]
            _kept[digest] = known
    return known


async def place_of(pool: asyncpg.Pool, session_id: str) -> SessionPlace:
    """Return a session. Raises ApiError when the log holds none of that name."""
    place = await find_session(pool, session_id)
    if place is None:
        raise not_found(f"session {session_id!r}", "`GET /sessions` lists them", "session_id")
    return place


def session_summary(place: SessionPlace, left_out: Sequence[str]) -> SessionSummary:
    """Return a session as lists show it; `left_out`: by its contract."""
    document = place.document
    return SessionSummary.of(
        place,
        document,
        is_paused=document.paused_at is not None,
        spent=_spent(document),
        halt_reason=document.halt_reason if document.state == "HALTED" else None,
        left_out=list(left_out),
    )


def _run(row: RunFigures, card: RunCard | None) -> RunSummary:
    """Return a run; what only its card tells is unknown while the follower is behind it."""
    spent: Counter[str] = Counter()
    for _, _, document in row.latest:
        spent.update(_spent(document))
    states = Counter(state for _, state, _ in row.latest)
    halted = any(state == "HALTED" for state in states)
    return RunSummary.of(
        row,
        team=None if card is None else card.team,
        title=None if card is None else card.title,
        tags=[] if card is None else card.tags,
        contract=None if card is None else card.contract,
        outcome="running" if row.running else "halted" if halted else "closed",
        opened_at=min(document.opened_at for _, _, document in row.latest) if card is None else card.opened_at,
        ended_at=None if card is None or row.running else card.ended_at,
        agents=len({name for _, _, document in row.latest for name in _agents(document)}),
        states=[NamedCount(name=name, count=count) for name, count in states.most_common()],
        session_ids=[session_id for session_id, _, _ in row.latest[:_SHOWN_SESSIONS]],
        spent=dict(spent),
    )


def _agents(document: SessionDocument) -> Iterator[str]:
    yield from document.members
    for swarm in document.swarms.values():
        yield from swarm


def _spent(document: SessionDocument) -> dict[str, float]:
    return {name: document.spent[name] for name in RESOURCES if name in document.spent}

"""Arbitrations and protocols: models, readings and routes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from uuid import UUID

import asyncpg
from fastapi import APIRouter

from apc_log.queries import ArbitrationRow
from apc_log.queries import list_protocols as logged_protocols
from apc_log.queries.arbitrations import ArbitrationFilters, CandidateOrigin, candidate_origins, page_of_arbitrations
from apc_web.access import AccountRole
from apc_web.cursors import (
    LARGEST_SHARD,
    After,
    Limit,
    OfRun,
    OfSession,
    OfTask,
    Since,
    Until,
    microseconds,
    read_cursor,
    time_of,
    write_cursor,
)
from apc_web.models import NEXT, ApiModel, NamedCount, Shown
from apc_web.roles import RoleRoute, needs
from apc_web.route_services import Services, Serving


class ArbitrationOption(ApiModel):
    """One of those compared."""

    candidate_id: Shown[str]
    packet_ids: Shown[list[UUID]]
    total_score: Shown[float]
    score_components: Shown[dict[str, float]]
    refused_with: Shown[list[str]]
    """Codes of the refusals of a TRANSFER that did not go through."""
    rank: Shown[int | None]
    is_winner: Shown[bool]


class ArbitrationSummary(ApiModel):
    """A live arbitration with its candidates."""

    judged_at: Shown[datetime]
    shard: Shown[int]
    seq: Shown[int]
    packet_id: Shown[UUID]
    session_id: Shown[str]
    run_id: Shown[str]
    task_id: Shown[str]
    round: Shown[int]
    generation: Shown[int]
    step: Shown[int]
    arbitration_id: Shown[str]
    subject: Shown[str]
    """transfers or candidates."""
    winner_candidate_id: Shown[str]
    selected: Shown[list[UUID]]
    margin: Shown[float | None]
    """Score of the best minus the second best; null with fewer than two that went on."""
    candidates: Shown[list[ArbitrationOption]]


class ArbitrationPage(ApiModel):
    """Arbitrations, newest first; those whose bodies are sealed or erased are left out."""

    items: Shown[list[ArbitrationSummary]]
    next: Shown[str | None] = NEXT


class ArbitrationGroup(ApiModel):
    """Figures of the candidates of one swarm, protocol, code or run."""

    name: Shown[str]
    arbitrations: Shown[int]
    candidates: Shown[int]
    selected: Shown[int]
    refused: Shown[int]
    mean_score: Shown[float | None]


class GenerationDiversity(ApiModel):
    """How different the candidates of a generation were, as the mean over the runs that compared any."""

    generation: Shown[int]
    runs: Shown[int]
    candidates: Shown[int]
    """Of all the runs together; one that no packet stands for does not count."""
    mean_swarms: Shown[float]
    """Different swarms among the candidates of a run."""
    mean_protocols: Shown[float]
    """Different protocols among the candidates of a run."""


class ArbitrationStatistics(ApiModel):
    """Figures over the newest arbitrations, at most 5,000."""

    looked_at: Shown[int]
    is_complete: Shown[bool]
    """False when there are more than were looked at."""
    subjects: Shown[list[NamedCount]]
    codes: Shown[list[NamedCount]]
    """Refusals of candidates by code."""
    mean_margin: Shown[float | None]
    margins: Shown[list[float]]
    """Decision margins, in the order of the log, at most 1,000."""
    swarms: Shown[list[ArbitrationGroup]]
    protocols: Shown[list[ArbitrationGroup]]
    runs: Shown[list[ArbitrationGroup]]
    generations: Shown[list[ArbitrationGroup]]
    diversity: Shown[list[GenerationDiversity]]
    """By generation, the first one first."""


class ProtocolSummary(ApiModel):
    """How a protocol does."""

    protocol_id: Shown[str]
    transfers: Shown[int]
    accepted: Shown[int]
    runs: Shown[int]
    tasks: Shown[int]
    acceptance_rate: Shown[float]
    average_outcome: Shown[float]
    average_drift_risk: Shown[float]
    effectiveness: Shown[float]
    outcome_lift: Shown[float | None]
    """Its own EVALs against all of their tasks; null where there is nothing to compare."""
    drift_delta: Shown[float | None]
    compared_evals: Shown[int]
    """The EVALs behind outcome_lift."""
    import_lift: Shown[float | None]
    """What receivers reached with it against their best before; null without evidence."""
    imports: Shown[int]
    """The accepted TRANSFERs behind import_lift."""
    last_seen_at: Shown[datetime]
    roots: Shown[list[str]]
    blocked_at: Shown[datetime | None]
    blocked_until: Shown[datetime | None]
    blocked_by: Shown[str | None]


class ProtocolList(ApiModel):
    """Protocols, the most transferred first."""

    items: Shown[list[ProtocolSummary]]


_MOST_LOOKED_AT = 5_000
"""Arbitrations behind the figures: the newest ones."""
_MOST_MARGINS = 1_000


async def arbitrations_page(
    pool: asyncpg.Pool, given: ArbitrationFilters, after: str | None, limit: int
) -> ArbitrationPage:
    """Return arbitrations, newest first. Raises ApiError for a bad cursor."""
    behind = read_cursor(after, "arbitrations", given, int, int, int)
    before = None
    if behind is not None:
        before = (time_of(behind[0]), max(min(behind[1], LARGEST_SHARD), -1), behind[2])
    rows = await page_of_arbitrations(
        pool,
        **given,
        before=before,
        limit=limit + 1,
    )
    shown = rows[:limit]
    cursor = None
    if len(rows) > limit:
        last = shown[-1]
        place = (last.judged_at, last.shard, last.seq) if isinstance(last, ArbitrationRow) else last
        cursor = write_cursor("arbitrations", given, microseconds(place[0]), place[1], place[2])
    return ArbitrationPage(items=[_summary(row) for row in shown if isinstance(row, ArbitrationRow)], next=cursor)


async def statistics(pool: asyncpg.Pool, given: ArbitrationFilters) -> ArbitrationStatistics:
    """Return figures over the newest arbitrations."""
    rows = await page_of_arbitrations(
        pool,
        **given,
        limit=_MOST_LOOKED_AT + 1,
    )
    looked = [row for row in rows[:_MOST_LOOKED_AT] if isinstance(row, ArbitrationRow)]
    wanted = [(row.session_id, packet_id) for row in looked for one in row.candidates for packet_id in one.packet_ids]
    origins = await candidate_origins(pool, wanted)
    entries = [
        _Entry(row, one.candidate_id, one.total_score, one.refused_with, _is_selected(row, one.packet_ids), origin)
        for row in looked
        for one in row.candidates
        for origin in [next((origins[packet] for packet in one.packet_ids if packet in origins), None)]
    ]
    margins = [margin for row in reversed(looked) if (margin := margin_of(row)) is not None]
    return ArbitrationStatistics(
        looked_at=len(looked),
        is_complete=len(rows) <= _MOST_LOOKED_AT,
        subjects=_counted(row.subject for row in looked),
        codes=_counted(code for entry in entries for code in entry.refused_with),
        mean_margin=fmean(margins) if margins else None,
        margins=margins[-_MOST_MARGINS:],
        swarms=_groups((entry.swarm, entry) for entry in entries),
        protocols=_groups((entry.protocol, entry) for entry in entries if entry.protocol is not None),
        runs=_groups((entry.row.run_id, entry) for entry in entries),
        generations=_groups((f"{entry.row.generation:>6}", entry) for entry in entries),
        diversity=diversity_of(
            Compared(entry.row.generation, entry.row.run_id, entry.origin) for entry in entries if entry.origin
        ),
    )


async def protocol_list(services: Services, run_id: str | None, limit: int) -> ProtocolList:
    """Return protocols with effectiveness and blocks, the most transferred first."""
    rows = await logged_protocols(services.pool, services.contract, run_id=run_id, limit=limit)
    return ProtocolList(items=[ProtocolSummary.of(row.figures, row) for row in rows])


def margin_of(row: ArbitrationRow) -> float | None:
    """Return the score of the best minus the second best of those that have a rank; None with fewer than two."""
    scores = sorted((one.total_score for one in row.candidates if one.rank is not None), reverse=True)
    return scores[0] - scores[1] if len(scores) > 1 else None


@dataclass(frozen=True, slots=True)
class Compared:
    """A candidate of an arbitration: its generation, its run, and where it comes from."""

    generation: int
    run_id: str
    origin: CandidateOrigin


def diversity_of(compared: Iterable[Compared]) -> list[GenerationDiversity]:
    """Return the number of different swarms and protocols by generation, as the mean over runs."""
    generations: dict[int, dict[str, list[CandidateOrigin]]] = {}
    for candidate in compared:
        generations.setdefault(candidate.generation, {}).setdefault(candidate.run_id, []).append(candidate.origin)
    return [
        GenerationDiversity(
            generation=generation,
            runs=len(runs),
            candidates=sum(map(len, runs.values())),
            mean_swarms=fmean(len({origin.swarm for origin in run}) for run in runs.values()),
            mean_protocols=fmean(len({origin.protocol_id for origin in run} - {None}) for run in runs.values()),
        )
        for generation, runs in sorted(generations.items())
    ]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One candidate of one arbitration."""

    row: ArbitrationRow
    candidate_id: str
    score: float
    refused_with: tuple[str, ...]
    is_selected: bool
    origin: CandidateOrigin | None

    @property
    def swarm(self) -> str:
        return self.candidate_id if self.origin is None else self.origin.swarm

    @property
    def protocol(self) -> str | None:
        return None if self.origin is None else self.origin.protocol_id


def _is_selected(row: ArbitrationRow, packet_ids: Iterable[object]) -> bool:
    return any(packet_id in row.selected for packet_id in packet_ids)


def _groups(named: Iterable[tuple[str, _Entry]]) -> list[ArbitrationGroup]:
    groups: dict[str, list[_Entry]] = {}
    for name, entry in named:
        groups.setdefault(name, []).append(entry)
    return [_group(name.strip(), groups[name]) for name in sorted(groups)]


def _group(name: str, entries: Sequence[_Entry]) -> ArbitrationGroup:
    return ArbitrationGroup(
        name=name,
        arbitrations=len({entry.row.packet_id for entry in entries}),
        candidates=len(entries),
        selected=sum(entry.is_selected for entry in entries),
        refused=sum(bool(entry.refused_with) for entry in entries),
        mean_score=fmean(entry.score for entry in entries),
    )


def _counted(names: Iterable[str]) -> list[NamedCount]:
    return [NamedCount(name=name, count=count) for name, count in Counter(names).most_common()]


def _summary(row: ArbitrationRow) -> ArbitrationSummary:
    options = [
        ArbitrationOption.of(one, is_winner=one.candidate_id == row.winner_candidate_id) for one in row.candidates
    ]
    return ArbitrationSummary.of(row, margin=margin_of(row), candidates=options)


# Routes of arbitrations and protocols.

router = APIRouter(tags=["decisions"], route_class=RoleRoute)


@router.get("/arbitrations", response_model=ArbitrationPage)
@needs(AccountRole.VIEWER)
async def list_arbitrations(
    services: Serving,
    *,
    run_id: OfRun = None,
    session_id: OfSession = None,
    task_id: OfTask = None,
    since: Since = None,
    until: Until = None,
    after: After = None,
    limit: Limit = 50,
) -> ArbitrationPage:
    """Return arbitrations with their candidates, newest first."""
    given = ArbitrationFilters(run_id=run_id, session_id=session_id, task_id=task_id, since=since, until=until)
    return await arbitrations_page(services.pool, given, after, limit)


@router.get("/arbitrations/stats", response_model=ArbitrationStatistics)
@needs(AccountRole.VIEWER)
async def get_statistics(
    services: Serving,
    run_id: OfRun = None,
    session_id: OfSession = None,
    task_id: OfTask = None,
    since: Since = None,
    until: Until = None,
) -> ArbitrationStatistics:
    """Return figures over arbitrations, by swarm, protocol, code, generation and run."""
    given = ArbitrationFilters(run_id=run_id, session_id=session_id, task_id=task_id, since=since, until=until)
    return await statistics(services.pool, given)


@router.get("/protocols", response_model=ProtocolList)
@needs(AccountRole.VIEWER)
async def list_protocols(services: Serving, run_id: OfRun = None, limit: Limit = 100) -> ProtocolList:
    """Return protocols with effectiveness and blocks, the most transferred first."""
    return await protocol_list(services, run_id, limit)

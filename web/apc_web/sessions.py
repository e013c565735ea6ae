"""One session: what it waits for, in words; its state, budgets, members, moves and scores; the routes of runs and
sessions.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from apc_contracts.contract.contract import Contract
from apc_contracts.contract.omissions import omissions
from apc_contracts.session.budgets import budget_shares, memberships
from apc_contracts.session.document import SessionDocument, TaskDocument
from apc_contracts.text import numbered
from apc_contracts.vocabulary import RunPhase
from apc_log.queries import HeldRow, list_dead, list_held_packets
from apc_log.queries.packet_pages import places_of_session, session_scores, session_transfers
from apc_log.queries.run_cards import Outcome, RunsWanted
from apc_log.queries.session_pages import SessionPlace, page_of_moves, session_figures
from apc_log.queries.surroundings import read_log_doubts
from apc_log.registry import read_swarms
from apc_log.session_loading import contract_of_session
from apc_web.access import AccountRole
from apc_web.contents import ContentLine, ContentLines, said_at
from apc_web.cursors import (
    LARGEST_SEQ,
    NAME,
    After,
    Limit,
    OfAgent,
    OfRun,
    SearchText,
    SessionName,
    Since,
    Until,
    read_cursor,
    write_cursor,
)
from apc_web.errors import not_found
from apc_web.models import NamedCount, SessionAt, TimelineColumns
from apc_web.outcomes import SessionDetail, approvals_in, entered_by, failures_in, result_of
from apc_web.roles import RoleRoute, needs
from apc_web.route_services import Reading, Serving
from apc_web.runs import (
    MachineEdge,
    MachineState,
    RunPage,
    RunSort,
    RunSummary,
    SessionDeadline,
    SessionMachine,
    SessionMember,
    SessionMoves,
    SessionPage,
    SessionScores,
    SessionWait,
    one_run,
    place_of,
    runs_page,
    session_summary,
    sessions_page,
)
from apc_web.timeline import LARGEST_PAGE, session_at, timeline_of

_MOST_IDS = 20


def waits_of(place: SessionPlace, held: Sequence[HeldRow], dead: int) -> list[SessionWait]:
    """Return what a session waits for, the most urgent first; nothing when it has ended."""
    document = place.document
    waits: list[SessionWait] = []
    if dead:
        waits.append(SessionWait(kind="dead_letter", words=numbered(dead, "dead letter waits", "dead letters wait")))
    if place.is_terminal:
        return waits
    if document.paused_at is not None:
        waits.append(SessionWait(kind="paused", words="an operator paused it: it waits for resume or stop"))
    waits += _questions(document)
    waits += _acknowledgements(document)
    waits += _barrier(document)
    if document.verifying:
        words = numbered(document.verifying, "packet is being verified", "packets are being verified")
        waits.append(SessionWait(kind="verification", words=words))
    if place.open_deliveries:
        words = numbered(place.open_deliveries, "delivery is on its way", "deliveries are on their way")
        waits.append(SessionWait(kind="delivery", words=words))
    if held:
        words = numbered(len(held), "packet is held", "packets are held") + " until the barrier or resume"
        ids = [one.packet_id for one in held[:_MOST_IDS]]
        waits.append(SessionWait(kind="held", words=words, packet_ids=ids))
    waits += [
        SessionWait(kind="deadline", words=_deadline_words(kind), due=due)
        for kind, due in sorted(document.deadlines.items(), key=lambda item: item[1])
        if not kind.startswith(("ack:", "ask:"))
    ]
    return waits


_DEADLINES = {
    "generation": "the generation ends at its deadline at the latest",
    "state": "the session halts if it does not leave this state before the deadline",
    "veto": "agents may veto the decision until the deadline",
    "wall": "the session halts when its time is used up",
    "deadline": "the session halts if its work is not done by its deadline",
    "open": "the session halts if its opener sends no work before the deadline",
    "stall": "the session halts if nothing moves until then",
    "wake": "a timer that an agent has set goes off",
}


def _deadline_words(kind: str) -> str:
    return _DEADLINES.get(kind.partition(":")[0], "a deadline of its contract")


def _questions(document: SessionDocument) -> list[SessionWait]:
    """Return the open questions to people, the one that is due first first."""
    if not isinstance(document, TaskDocument):
        return []
    return [
        SessionWait(
            kind="question",
            words=f"{question.asker} asks {_either(question.may_answer)}",
            due=question.due_at,
            agents=question.may_answer,
            packet_ids=[packet_id],
        )
        for packet_id, question in sorted(document.work.questions.items(), key=lambda item: item[1].due_at)
    ]


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _acknowledgements(document: SessionDocument) -> list[SessionWait]:
    return [
        SessionWait(
            kind="acknowledgement",
            words=f"{', '.join(pending.missing)} must acknowledge a packet of {pending.sender}",
            due=document.deadlines.get(f"ack:{packet_id}:{pending.attempt}"),
            agents=pending.missing,
            packet_ids=[packet_id],
        )
        for packet_id, pending in document.pending_acks.items()
    ]


def _barrier(document: SessionDocument) -> list[SessionWait]:
    """Return the swarms that the barrier of the open generation waits for."""
    is_research = document.run_phase is RunPhase.RESEARCH
    if not is_research and "generation" not in document.deadlines:
        return []
    there = document.round_state.ready if is_research else document.round_state.evaluated
    missing = [name for name in document.swarms if name not in there and name not in document.dead_swarms]
    if not missing:
        return []
    what = "a SYNC" if is_research else "an EVAL"
    words = f"the barrier of generation {document.generation} waits for {what} of {', '.join(missing)}"
    agents = [agent for name in missing for agent in document.swarms[name] if agent not in document.dead_agents]
    return [SessionWait(kind="barrier", words=words, due=document.deadlines.get("generation"), agents=agents)]


_MOST_DEAD = 1_000
_MOST_SCORES = 5_000
SESSION_MACHINE = "inter_agent_coordination"
PACKET_MACHINE = "packet_lifecycle"


async def _members(reading: Reading, document: SessionDocument) -> list[SessionMember]:
    """Return the members; the swarm of one that the session names alone is that of its registration."""
    members = memberships(document)
    swarms = await read_swarms(reading.pool, [one.agent_id for one in members if one.swarm is None])
    return [SessionMember.of(one, swarm=one.swarm or swarms.get(one.agent_id)) for one in members]


async def session_detail(reading: Reading, session_id: str) -> SessionDetail:
    """Return everything about one session but its packets. Raises ApiError when there is none."""
    place = await place_of(reading.pool, session_id)
    figures = await session_figures(reading.pool, place)
    held = await list_held_packets(reading.pool, session_id)
    dead = await list_dead(reading.pool, session_id=session_id, limit=_MOST_DEAD)
    doubts = await read_log_doubts(reading.pool, session_id)
    uncharged = [(one.task_id, one.resource, one.refused) for one in doubts.usage]
    document = place.document
    contract = await contract_of_session(reading.pool, document.contract_hash, reading.contract)
    return SessionDetail.of(
        session_summary(place, omissions(contract)),
        document,
        figures,
        verdicts=_counts(figures.verdicts),
        refusals=_counts(figures.refusals),
        dead=len(dead),
        waits=waits_of(place, held, len(dead)),
        budgets=budget_shares(document, datetime.now(UTC), uncharged),
        members=await _members(reading, document),
        deadlines=[SessionDeadline(kind=kind, due=due) for kind, due in sorted(document.deadlines.items())],
        held=held,
        stale_decisions=doubts.stale,
        machine=machine_of(contract, SESSION_MACHINE),
        coordinator=contract.coordinator.value,
        entered=await entered_by(reading, session_id, contract.machine(SESSION_MACHINE).states[0]),
        result=await result_of(reading, document),
        approvals=await approvals_in(reading, document),
        failures=await failures_in(reading, document, dead),
        failed_verifications=len(doubts.failed),
        refused_usage=len(doubts.usage),
        doubts=doubts.sentences,
    )


async def moves_of(reading: Reading, session_id: str, after: str | None, limit: int) -> SessionMoves:
    """Return transitions and barriers of a session, oldest first. Raises ApiError."""
    await place_of(reading.pool, session_id)
    last = read_cursor(after, "moves", {"session_id": session_id}, int)
    rows = await page_of_moves(reading.pool, session_id, after=last[0] if last else 0, limit=limit + 1)
    shown = rows[:limit]
    cursor = write_cursor("moves", {"session_id": session_id}, shown[-1].seq) if len(rows) > limit else None
    return SessionMoves.of(items=shown, next=cursor)


async def scores_of(reading: Reading, session_id: str) -> SessionScores:
    """Return scores by generation and swarm, and the transfers between swarms. Raises ApiError."""
    await place_of(reading.pool, session_id)
    scores = await session_scores(reading.pool, session_id, limit=_MOST_SCORES + 1)
    transfers = await session_transfers(reading.pool, session_id, limit=_MOST_SCORES + 1)
    return SessionScores.of(
        scores=scores[:_MOST_SCORES],
        transfers=transfers[:_MOST_SCORES],
        is_cut=max(len(scores), len(transfers)) > _MOST_SCORES,
    )


def _counts(counts: dict[str, int]) -> list[NamedCount]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [NamedCount(name=name, count=count) for name, count in ordered]


def machine_of(contract: Contract, name: str) -> SessionMachine:
    """Return a machine of the contract: states in its order, edges one for each state and event."""
    machine = contract.machine(name)
    states = [
        MachineState(
            name=state,
            run_phase=_phase_of(contract, state) if name == SESSION_MACHINE else None,
            is_terminal=state in machine.terminal,
        )
        for state in machine.states
    ]
    edges = [MachineEdge(event=edge.event, from_state=edge.source, to_state=edge.target) for edge in machine.edges]
    return SessionMachine(states=states, edges=edges)


def _phase_of(contract: Contract, state: str) -> str | None:
    phase = contract.phase_of(state)
    return None if phase is None else phase.value


# Routes.

router = APIRouter(tags=["runs and sessions"], route_class=RoleRoute)


@router.get("/runs", response_model=RunPage)
@needs(AccountRole.VIEWER)
async def list_runs(
    services: Serving,
    *,
    text: SearchText = None,
    team: Annotated[str | None, Query(pattern=NAME, description="Only of this team.")] = None,
    contract: Annotated[str | None, Query(pattern=NAME, description="Only under this contract.")] = None,
    tag: Annotated[str | None, Query(pattern=NAME, description="Only with this tag, as KEY=VALUE.")] = None,
    agent: OfAgent = None,
    outcome: Annotated[Outcome | None, Query(description="Only with this outcome.")] = None,
    state: Annotated[str | None, Query(pattern=NAME, description="Only with a session in this state.")] = None,
    since: Since = None,
    until: Until = None,
    sort: Annotated[RunSort, Query(description="What comes first; a minus turns it round.")] = "-changed",
    after: After = None,
    limit: Limit = 50,
) -> RunPage:
    """Return the runs that fit everything given, by default the one that changed last first.

    since and until are about when a run was started; text is searched for in its input, its names and tags.
    """
    wanted = RunsWanted(text, team, contract, tag, agent, outcome, state, since, until)
    return await runs_page(services.pool, wanted, sort, after, limit)


@router.get("/runs/{run_id}", response_model=RunSummary)
@needs(AccountRole.VIEWER)
async def get_run(services: Serving, run_id: SessionName) -> RunSummary:
    """Return one run."""
    return await one_run(services.pool, run_id)


@router.get("/sessions", response_model=SessionPage)
@needs(AccountRole.VIEWER)
async def list_sessions(
    services: Serving,
    run_id: OfRun = None,
    running: Annotated[bool | None, Query(description="Only those that run, or only those that ended.")] = None,
    after: After = None,
    limit: Limit = 100,
) -> SessionPage:
    """Return sessions, the one that changed last first."""
    return await sessions_page(services.pool, services.contract, run_id, running, after, limit)


@router.get("/sessions/{session_id}", response_model=SessionDetail)
@needs(AccountRole.VIEWER)
async def get_session(services: Serving, session_id: SessionName) -> SessionDetail:
    """Return one session: its state, what it waits for, budgets, members, refusals."""
    return await session_detail(services, session_id)


@router.get("/sessions/{session_id}/moves", response_model=SessionMoves)
@needs(AccountRole.VIEWER)
async def list_moves(
    services: Serving, session_id: SessionName, after: After = None, limit: Limit = 500
) -> SessionMoves:
    """Return transitions and barriers of a session, oldest first."""
    return await moves_of(services, session_id, after, limit)


@router.get("/sessions/{session_id}/lines", response_model=ContentLines)
@needs(AccountRole.READER)
async def get_lines(
    services: Serving,
    session_id: SessionName,
    seq: Annotated[
        list[Annotated[int, Path(ge=0, le=LARGEST_SEQ)]],
        Query(min_length=1, max_length=200, description="Positions of packets in the log of the session's shard."),
    ],
) -> ContentLines:
    """Return what packets of a session say, a line each; positions that are no packet of it are left out."""
    place = await place_of(services.pool, session_id)
    rows = await places_of_session(services.pool, session_id, place.shard, seq)
    said = await said_at(services.pool, services.schemas, rows)
    return ContentLines(items=[ContentLine.of(one, seq=place.seq) for place, one in said.items()])


@router.get("/sessions/{session_id}/scores", response_model=SessionScores)
@needs(AccountRole.VIEWER)
async def get_scores(services: Serving, session_id: SessionName) -> SessionScores:
    """Return scores by generation and swarm, and the transfers between swarms."""
    return await scores_of(services, session_id)


@router.get("/sessions/{session_id}/timeline", response_model=TimelineColumns)
@needs(AccountRole.VIEWER)
async def get_timeline(
    services: Serving,
    session_id: SessionName,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="At most this many packets.")] = LARGEST_PAGE,
) -> Response:
    """Return a session's packets as columns, for drawing."""
    place = await place_of(services.pool, session_id)
    position = read_cursor(after, "timeline", {"session_id": session_id}, int)
    body, last = await timeline_of(services.pool, place, position[0] if position else 0, limit)
    following = None if last is None else write_cursor("timeline", {"session_id": session_id}, last)
    return Response(body.finish(following), media_type="application/json")


@router.get("/sessions/{session_id}/at/{seq}", response_model=SessionAt)
@needs(AccountRole.VIEWER)
async def get_session_at(
    services: Serving,
    session_id: SessionName,
    seq: Annotated[int, Path(ge=0, le=LARGEST_SEQ, description="Position in the log of the session's shard.")],
) -> SessionAt:
    """Return the session after the input that an entry belongs to."""
    state = await session_at(services, session_id, seq)
    if state is None:
        raise not_found(f"session {session_id!r}", "`GET /sessions` lists them", "session_id")
    return state

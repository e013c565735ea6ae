"""One session: state, budgets, members, moves, scores."""

from dataclasses import asdict
from datetime import UTC, datetime

from apc_contracts.contract.contract import Contract
from apc_contracts.session.shares import budget_shares, memberships
from apc_log.queries import list_dead, list_held_packets
from apc_log.queries.packet_pages import session_scores, session_transfers
from apc_log.queries.session_pages import MoveRow, page_of_moves, session_figures
from apc_log.session_loading import contract_of_session
from apc_log.watching import list_stale_decisions
from apc_web.cursors import read_cursor, write_cursor
from apc_web.models.model_base import NamedCount
from apc_web.models.runs import (
    BudgetPart,
    GenerationScore,
    GenerationTransfer,
    HeldPacketSummary,
    MachineEdge,
    MachineState,
    SessionDeadline,
    SessionDetail,
    SessionMachine,
    SessionMember,
    SessionMove,
    SessionMoves,
    SessionScores,
    StaleDecisionSummary,
)
from apc_web.reading.runs import place_of, session_summary
from apc_web.reading.waits import waits_of
from apc_web.route_services import Services

_MOST_DEAD = 1_000
_MOST_SCORES = 5_000
SESSION_MACHINE = "inter_agent_coordination"
PACKET_MACHINE = "packet_lifecycle"


async def session_detail(services: Services, session_id: str) -> SessionDetail:
    """Return everything about one session but its packets. Raises ApiError when there is none."""
    place = await place_of(services.pool, session_id)
    figures = await session_figures(services.pool, place)
    held = await list_held_packets(services.pool, session_id)
    dead = await list_dead(services.pool, session_id=session_id, limit=_MOST_DEAD)
    document = place.document
    contract = await contract_of_session(services.pool, document.contract_hash, services.contract)
    return SessionDetail(
        **dict(session_summary(place)),
        step=document.step,
        generation_limit=document.generation_limit,
        max_rounds=document.max_rounds,
        opener=document.opener,
        paused_at=document.paused_at,
        first_seq=figures.first_seq,
        last_seq=figures.last_seq,
        packets=figures.packets,
        verdicts=_counts(figures.verdicts),
        refusals=_counts(figures.refusals),
        dead=len(dead),
        waits=waits_of(place, held, len(dead)),
        budgets=[BudgetPart(**asdict(one)) for one in budget_shares(document, datetime.now(UTC))],
        members=[SessionMember(**asdict(one)) for one in memberships(document)],
        deadlines=[SessionDeadline(kind=kind, due=due) for kind, due in sorted(document.deadlines.items())],
        held=[
            HeldPacketSummary(
                packet_id=one.packet_id, packet_type=one.packet_type, sender=one.sender_agent_id, since=one.judged_at
            )
            for one in held
        ],
        stale_decisions=[
            StaleDecisionSummary(packet_id=one.packet_id, ground_id=one.ground_id, words=one.words)
            for one in await list_stale_decisions(services.pool, session_id)
        ],
        machine=machine_of(contract, SESSION_MACHINE),
    )


async def moves_of(services: Services, session_id: str, after: str | None, limit: int) -> SessionMoves:
    """Return transitions and barriers of a session, oldest first. Raises ApiError."""
    await place_of(services.pool, session_id)
    found = read_cursor(after, "moves", {"session_id": session_id}, int)
    rows = await page_of_moves(services.pool, session_id, after=found[0] if found else 0, limit=limit + 1)
    shown = rows[:limit]
    cursor = write_cursor("moves", {"session_id": session_id}, shown[-1].seq) if len(rows) > limit else None
    return SessionMoves(items=[_move(row) for row in shown], next=cursor)


async def scores_of(services: Services, session_id: str) -> SessionScores:
    """Return scores by generation and swarm, and the transfers between swarms. Raises ApiError."""
    await place_of(services.pool, session_id)
    scores = await session_scores(services.pool, session_id, limit=_MOST_SCORES + 1)
    transfers = await session_transfers(services.pool, session_id, limit=_MOST_SCORES + 1)
    return SessionScores(
        scores=[
            GenerationScore(
                seq=row.seq,
                at=row.judged_at,
                packet_id=row.packet_id,
                agent=row.sender_agent_id,
                swarm=row.sender_swarm_id,
                round=row.round,
                generation=row.generation,
                verdict=row.verdict,
                outcome=row.outcome,
                drift_risk=row.drift_risk,
            )
            for row in scores[:_MOST_SCORES]
        ],
        transfers=[
            GenerationTransfer(
                seq=row.seq,
                at=row.judged_at,
                packet_id=row.packet_id,
                round=row.round,
                generation=row.generation,
                protocol_id=row.protocol_id,
                from_swarm=row.from_swarm,
                to_swarm=row.to_swarm,
                verdict=row.verdict,
                refusal_code=row.refusal_code,
            )
            for row in transfers[:_MOST_SCORES]
        ],
        is_cut=max(len(scores), len(transfers)) > _MOST_SCORES,
    )


def _counts(counts: dict[str, int]) -> list[NamedCount]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [NamedCount(name=name, count=count) for name, count in ordered]


def _move(row: MoveRow) -> SessionMove:
    return SessionMove(
        seq=row.seq,
        at=row.recorded_at,
        event=row.event,
        from_state=row.from_state,
        to_state=row.to_state,
        round=row.round,
        generation=row.generation,
        step=row.step,
        cause_packet_id=row.cause_packet_id,
    )


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

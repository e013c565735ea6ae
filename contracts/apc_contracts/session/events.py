"""How accepted packets and deadlines count in their session, and which events they make of it.

Source: docs/specification/contract.md section 10.
"""

from collections.abc import Callable
from itertools import combinations, count
from uuid import UUID

from apc_contracts.contract.coordinators import STOP
from apc_contracts.identity.ids import timer_id
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import DecisionPayload, EvalPayload, RetractionPayload, SignalFields, TaskIrPayload
from apc_contracts.session import barrier, knowledge, lifecycle, promotion, receipts, task
from apc_contracts.session.document import KEYS_KEPT, LONGEST_KEY, RoundState, WinnerExecution
from apc_contracts.session.knowledge import note_evidence, note_symbols, note_transfer
from apc_contracts.session.movement import (
    GENERATION_STATES,
    Advance,
    may,
    open_generation,
    open_round,
    pause,
    resume,
    start_timer,
    transition,
)
from apc_contracts.session.session import OpenPacket, Session
from apc_contracts.session.task import note_question, note_wake
from apc_contracts.vocabulary import ORCHESTRATOR, CommitmentLevel, PacketType, Signal

LONGEST_OPENING_MS = 60_000
"""A session of the coordinator `task` halts when its opener sends no work for this long."""


def count_packet(moment: Advance, opened: OpenPacket) -> None:
    """Count a packet of the current round; packets of an older round are admitted, but not counted."""
    session, packet = moment.session, opened.packet
    note_symbols(session, packet)
    note_evidence(session, packet, moment.contract)
    if packet.packet_type is PacketType.RETRACTION:
        _retraction(moment, packet)
    work = session.work
    if work is not None and packet.packet_type is PacketType.EVAL:
        opened.completion = promotion.completion_in_task(packet, moment.contract)
    if work is not None and not session.is_terminal:
        task.count(moment, packet, work)
        note_question(moment, opened, work)
        note_wake(moment, packet, work)
    if session.is_terminal or (opened.round != session.round and not _is_operation(packet)):
        return
    counter = _COUNTERS.get(packet.packet_type)
    if counter is not None:
        counter(moment, opened)


def _is_operation(packet: Packet) -> bool:
    """Return whether an operator's order: it concerns the session, not the round of the packet it answers."""
    return packet.packet_type is PacketType.SIGNAL and packet.payload_as(SignalFields).signal in _OPERATIONS


def _task_ir(moment: Advance, opened: OpenPacket) -> None:
    document, payload = moment.session.document, opened.packet.payload_as(TaskIrPayload)
    if payload.ir_header.task_id not in moment.session.tasks and len(document.task_ids) < KEYS_KEPT:
        moment.session.tasks.add(payload.ir_header.task_id)
        document.task_ids.append(payload.ir_header.task_id)
    if document.state != "SESSION_OPEN":
        return
    for recipient in opened.recipients:
        swarm = moment.session.swarm_of.get(recipient)
        if swarm is not None:
            document.briefs[swarm] = [key[:LONGEST_KEY] for key in opened.packet.symbolic_keys]


def _signal(moment: Advance, opened: OpenPacket) -> None:
    document, packet = moment.session.document, opened.packet
    signal = packet.payload_as(SignalFields).signal
    if signal is Signal.START and packet.packet_id == document.start_packet_id:
        _start(moment)
    elif signal in (Signal.STOP, Signal.CANCEL):
        document.halt_reason = f"{signal} by {packet.sender.agent_id}"
        resume(moment)
    elif signal is Signal.PAUSE and document.paused_at is None:
        pause(moment)
    elif signal is Signal.RESUME:
        resume(moment)
    elif signal is Signal.VETO:
        _veto(moment, packet)
    elif signal is Signal.SYNC and packet.sender.agent_id != ORCHESTRATOR:
        _is_counted(moment, opened)
    elif signal is Signal.QUERY and packet.sender.agent_id == ORCHESTRATOR:
        expire_timer(moment, packet)


def _start(moment: Advance) -> None:
    document = moment.session.document
    if moment.session.work is None:
        start_timer(moment, "state", document.state_deadline_ms)
    else:
        start_timer(moment, "deadline", document.state_deadline_ms)
        start_timer(moment, "open", min(LONGEST_OPENING_MS, document.state_deadline_ms))
    wall = document.budgets.get("wall_ms")
    if wall is not None:
        start_timer(moment, "wall", int(wall))
    if document.search_ms is not None:
        start_timer(moment, "search", document.search_ms)
    moment.effects.is_sync_due = True


def _is_counted(moment: Advance, opened: OpenPacket) -> None:
    packet, ready = opened.packet, moment.session.document.round_state.ready
    swarm = moment.session.swarm_of.get(packet.sender.agent_id)
    is_ready = packet.trace.generation == 0 and ORCHESTRATOR in opened.recipients
    if swarm is not None and is_ready and swarm not in ready:
        ready.append(swarm)


def _veto(moment: Advance, packet: Packet) -> None:
    arbitration = moment.session.document.round_state.arbitration
    if arbitration is not None and packet.trace.parent_packet_id == arbitration.packet_id:
        arbitration.vetoes.setdefault(packet.packet_id, False)


def _eval(moment: Advance, opened: OpenPacket) -> None:
    session, packet = moment.session, opened.packet
    current = session.document.round_state
    swarm = session.swarm_of.get(packet.sender.agent_id)
    is_of_generation = packet.trace.generation == session.generation
    is_measured = isinstance(packet.payload, EvalPayload)
    if swarm is not None and is_of_generation and is_measured and swarm not in current.evaluated:
        current.evaluated.append(swarm)
    promotion.note_eval(session, opened)


def _artifact(moment: Advance, opened: OpenPacket) -> None:
    promotion.note_artifact(moment.session, opened)


def _decision(moment: Advance, opened: OpenPacket) -> None:
    packet, current = opened.packet, moment.session.document.round_state
    parent, level = packet.trace.parent_packet_id, packet.payload_as(DecisionPayload).commitment_level
    arbitration = current.arbitration
    if moment.session.state == "ARBITRATION" and arbitration is not None:
        if parent in arbitration.vetoes:
            arbitration.vetoes[parent] |= moment.contract.rights.moves_session in moment.rights
        elif parent == arbitration.packet_id and level is CommitmentLevel.APPROVED:
            arbitration.is_approved = True
    elif level is CommitmentLevel.DONE and parent == current.protocol_artifact is not None:
        current.is_committed = packet.sender.agent_id == ORCHESTRATOR


def _transfer(moment: Advance, opened: OpenPacket) -> None:
    note_transfer(moment.session, opened.packet)


def _retraction(moment: Advance, packet: Packet) -> None:
    payload = packet.payload_as(RetractionPayload)
    target, replacement = payload.target_packet_id, payload.replacement_packet_id
    lifecycle.retract(moment, target, packet.sender.agent_id, replacement)
    receipts.forget_acks(moment.session, target)
    knowledge.spread(moment, target, replacement)
    if moment.session.is_terminal:
        return
    promotion.forget(moment.session, target)
    _retract_winner(moment, target)
    current = moment.session.document.round_state
    execution = current.execution
    if moment.session.state == "EXECUTION":
        _retract_work(current, target)
    elif target in (execution.artifact, execution.judged_by):
        execution.is_retracted = True


def _retract_work(current: RoundState, target: UUID) -> None:
    """Undo a retracted ARTIFACT or EVAL that was not validated yet: the winner may send another."""
    if target == current.execution.artifact:
        current.execution = WinnerExecution()
    elif target in current.execution.evals:
        current.execution.evals.remove(target)


def _retract_winner(moment: Advance, target: UUID) -> None:
    """Void an arbitration whose winner was retracted: the next best gets its own veto window."""
    document = moment.session.document
    arbitration = document.round_state.arbitration
    if document.state == "ARBITRATION" and arbitration is not None and arbitration.winner == target:
        document.halt_reason = promotion.strike(moment, arbitration) or document.halt_reason


_OPERATIONS = frozenset({Signal.STOP, Signal.CANCEL, Signal.PAUSE, Signal.RESUME})
_COUNTERS: dict[PacketType, Callable[[Advance, OpenPacket], None]] = {
    PacketType.TASK_IR: _task_ir,
    PacketType.SIGNAL: _signal,
    PacketType.EVAL: _eval,
    PacketType.ARTIFACT: _artifact,
    PacketType.DECISION: _decision,
    PacketType.TRANSFER: _transfer,
}


# Deadlines: a timer packet reports that one has passed.

_REASON = "deadline "
"""How the reason of a timer packet begins; its kind follows."""


def timer_kind(session: Session, packet: Packet) -> str | None:
    """Return the running deadline that a timer packet stands for, proven by its id; None when there is none."""
    payload = packet.payload
    kind = (payload.reason or "").removeprefix(_REASON) if isinstance(payload, SignalFields) else ""
    is_running = kind in session.document.deadlines
    return kind if is_running and timer_id(session.session_id, session.step, kind) == packet.packet_id else None


def expire_timer(moment: Advance, packet: Packet) -> None:
    """Remove a deadline and do what it stands for."""
    kind = timer_kind(moment.session, packet)
    if kind is None:
        return
    del moment.session.document.deadlines[kind]
    awaited, asked, wake = (
        find(kind) for find in (receipts.packet_of_timer, task.question_of_timer, task.wake_of_timer)
    )
    if asked is not None:
        task.expire_question(moment, asked)
    elif wake is not None:
        task.expire_wake(moment, wake)
    elif awaited is not None:
        receipts.expire_acks(moment, awaited)
    else:
        _ENDS[kind](moment)


def _generation_ends(moment: Advance) -> None:
    moment.session.document.round_state.has_generation_expired = True


def _state_ends(moment: Advance) -> None:
    moment.session.document.halt_reason = f"STATE_DEADLINE in {moment.session.state}"


def _wall_ends(moment: Advance) -> None:
    moment.session.document.halt_reason = "BUDGET_EXHAUSTED wall_ms"


def _search_ends(moment: Advance) -> None:
    """End the search with the open generation: what is verified by then is arbitrated, and no further round opens."""
    document = moment.session.document
    document.generation_limit = min(document.generation_limit, document.generation)
    document.convergence_generations = 0
    document.max_rounds = document.round


def _veto_window_ends(moment: Advance) -> None:
    moment.session.document.halt_reason = promotion.end_veto_window(moment)


def _deadline_ends(moment: Advance) -> None:
    moment.session.document.halt_reason = f"DEADLINE in {moment.session.state}"


def _opening_ends(moment: Advance) -> None:
    opener = moment.session.document.opener
    moment.session.document.halt_reason = f"NOT_STARTED {opener} sent no work"


def _is_stalled(moment: Advance) -> None:
    work = moment.session.work
    last = work.last_end if work is not None else ""
    moment.session.document.halt_reason = f"STALLED nothing is open; the last end: {last or 'none'}"


_ENDS: dict[str, Callable[[Advance], None]] = {
    "generation": _generation_ends,
    "state": _state_ends,
    "wall": _wall_ends,
    "search": _search_ends,
    "veto": _veto_window_ends,
    "deadline": _deadline_ends,
    "open": _opening_ends,
    "stall": _is_stalled,
}

_FINAL = frozenset({"wall", "veto", "deadline"})


def ends_what_may_come(kind: str) -> bool:
    """Return whether an input after this deadline comes too late, also if no orchestrator saw it pass.

    Of a question, a veto window and the session's end. Other deadlines say that nothing has come: what comes after an
    outage of the orchestrator, and was sent in time, shows that it has.
    """
    return kind in _FINAL or task.question_of_timer(kind) is not None


# The events of the inter-agent machine, checked after every packet, receipt and timer.

MAX_MOVES = 100
"""Of a session for one input: a contract whose edges lead round in a circle would hold the orchestrator forever."""


def settle(moment: Advance) -> None:
    """Move the session as far as its conditions allow now; halt it when they lead round in a circle."""
    document = moment.session.document
    for move in count():
        if moment.session.is_terminal or moment.session.is_paused or move > MAX_MOVES:
            return
        if move == MAX_MOVES and document.halt_reason is None:
            document.halt_reason = f"CIRCLE {document.state}: the contract's edges do not come to rest"
            _halt_if_needed(moment)
            return
        before = document.step, document.halt_reason
        _halt_if_needed(moment)
        if not moment.session.is_terminal:
            _settle_state(moment)
        if (document.step, document.halt_reason) == before:
            return


def _settle_state(moment: Advance) -> None:
    if moment.session.work is not None:
        task.work(moment)
    else:
        _BY_STATE[moment.session.document.state](moment)


def _halt_if_needed(moment: Advance) -> None:
    document = moment.session.document
    if document.halt_reason is None:
        document.halt_reason = _spent_budget(moment) or _nobody_left(moment)
    if document.halt_reason is not None and may(moment, STOP):
        transition(moment, STOP, {"reason": document.halt_reason})


def _spent_budget(moment: Advance) -> str | None:
    document = moment.session.document
    for name in ("tokens", "cost"):
        budget = document.budgets.get(name)
        if budget is not None and document.spent.get(name, 0.0) >= budget:
            return f"BUDGET_EXHAUSTED {name}"
    return None


def _nobody_left(moment: Advance) -> str | None:
    return None if moment.session.live_swarms or moment.session.work is not None else "NO_LIVE_SWARM"


def _research(moment: Advance) -> None:
    """Move on when every swarm has its brief and no two briefs share more than half of their symbolic keys."""
    document = moment.session.document
    if any(swarm not in document.briefs for swarm in document.swarms):
        return
    for brief, other in combinations(document.briefs.values(), 2):
        shared = len(set(brief) & set(other))
        if shared > moment.contract.session.brief_overlap_limit * min(len(set(brief)), len(set(other))):
            return
    if may(moment, "research_briefs_dispatched"):
        transition(moment, "research_briefs_dispatched")
        document.briefs.clear()


def _ready(moment: Advance) -> None:
    document = moment.session.document
    current = document.round_state
    missing = [swarm for swarm in moment.session.live_swarms if swarm not in current.ready]
    if missing and not (current.has_generation_expired and current.ready):
        return
    if not may(moment, "all_swarms_ready"):
        return
    document.dead_swarms.extend(missing)
    transition(moment, "all_swarms_ready")
    open_generation(moment, 0)


def _generations(moment: Advance) -> None:
    document = moment.session.document
    if not barrier.may_close(moment):
        return
    is_last = document.generation >= document.last_generation
    barrier.close(moment)
    if is_last and document.state == "CONTROLLED_CONVERGENCE":
        _open_pool(moment)


def _open_pool(moment: Advance) -> None:
    document = moment.session.document
    reason = promotion.why_no_winner(document)
    if reason is not None:
        document.halt_reason = reason
        return
    facts = promotion.pool_facts(document)
    if not may(moment, "candidate_pool_ready", facts):
        # The contract may ask for a larger pool: the next generation may bring it.
        open_generation(moment, document.generation + 1)
        return
    transition(moment, "candidate_pool_ready", facts)
    promotion.arbitrate(moment)


def _arbitration(moment: Advance) -> None:
    """Move on when a DECISION APPROVED is not vetoed; the veto timer ends what is still open."""
    arbitration = moment.session.document.round_state.arbitration
    if arbitration is not None and arbitration.is_approved and may(moment, "decision_committed"):
        promotion.commit(moment, arbitration)


def _execution(moment: Advance) -> None:
    execution = moment.session.document.round_state.execution
    if execution.artifact is not None and execution.evals and may(moment, "artifact_and_eval_emitted"):
        transition(moment, "artifact_and_eval_emitted")


def _validation(moment: Advance) -> None:
    document = moment.session.document
    passed = promotion.validation_result(moment.session)
    if passed is None:
        return
    if passed and may(moment, "validation_pass", _metrics(moment)):
        promotion.promote_execution(moment)
        transition(moment, "validation_pass", _metrics(moment))
        promotion.open_commons(moment)
        return
    failed = document.round_state.execution.failed_metrics or ["artifact" if not passed else "validation_pass"]
    if document.round >= document.max_rounds or not may(moment, "validation_fail_or_drift"):
        document.halt_reason = "VALIDATION_FAILED " + " ".join(failed)
        return
    promotion.drop_failed(moment)
    transition(moment, "validation_fail_or_drift", {"failed": failed})
    open_round(moment)


def _metrics(moment: Advance) -> dict[str, float]:
    """Return the metrics of the validating EVAL: what the guard of validation_pass reads."""
    return dict(moment.session.document.round_state.execution.metrics)


def _promotion(moment: Advance) -> None:
    """Close the commons like a generation: when nothing is being handled or verified any more, or time is up."""
    if promotion.may_commit(moment) and (barrier.is_quiet(moment.session) or _has_expired(moment)):
        promotion.commit_commons(moment)
    if moment.session.document.round_state.is_committed and may(moment, "commons_commit_complete"):
        transition(moment, "commons_commit_complete")


def _has_expired(moment: Advance) -> bool:
    return moment.session.document.round_state.has_generation_expired


_BY_STATE: dict[str, Callable[[Advance], None]] = {
    "SESSION_OPEN": _research,
    "DIFFERENTIATED_RESEARCH": _ready,
    **dict.fromkeys(GENERATION_STATES, _generations),
    "ARBITRATION": _arbitration,
    "EXECUTION": _execution,
    "VALIDATION": _validation,
    "PROMOTION": _promotion,
}

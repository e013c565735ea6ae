"""How an accepted packet counts in its session (docs/specification/contract.md section 10, Events)."""

from collections.abc import Callable
from uuid import UUID

from apc_contracts.envelope.packet import Packet
from apc_contracts.payloads.by_type import DecisionPayload, EvalPayload, RetractionPayload, SignalFields, TaskIrPayload
from apc_contracts.session.delivery import acknowledgements
from apc_contracts.session.document import KEYS_KEPT, LONGEST_KEY, RoundState, WinnerExecution
from apc_contracts.session.knowledge import staleness
from apc_contracts.session.knowledge.loop_memory import note_evidence
from apc_contracts.session.knowledge.novelty import note_symbols, note_transfer
from apc_contracts.session.movement import Advance, pause, resume, start_timer
from apc_contracts.session.path import candidates, completion, promotion_path
from apc_contracts.session.session import OpenPacket
from apc_contracts.session.task import counting as task
from apc_contracts.session.task.questions import note_question
from apc_contracts.session.task.wakes import note_wake
from apc_contracts.session.timers import expire
from apc_contracts.vocabulary import ORCHESTRATOR, CommitmentLevel, PacketType, Signal

LONGEST_OPENING_MS = 60_000
"""A session of the coordinator `task` halts when its opener sends no work for this long."""


def count(moment: Advance, opened: OpenPacket) -> None:
    """Count a packet of the current round; packets of an older round are admitted, but not counted."""
    session, packet = moment.session, opened.packet
    note_symbols(session, packet)
    note_evidence(session, packet, moment.contract)
    if packet.packet_type is PacketType.RETRACTION:
        _retraction(moment, packet)
    work = session.work
    if work is not None and packet.packet_type is PacketType.EVAL:
        opened.completion = promotion_path.completion_in_task(packet, moment.contract)
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
        _ready(moment, opened)
    elif signal is Signal.QUERY and packet.sender.agent_id == ORCHESTRATOR:
        expire(moment, packet)


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


def _ready(moment: Advance, opened: OpenPacket) -> None:
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
    promotion_path.note_eval(session, opened)


def _artifact(moment: Advance, opened: OpenPacket) -> None:
    promotion_path.note_artifact(moment.session, opened)


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
    completion.retract(moment.session, target, packet.sender.agent_id, replacement, moment.now, moment.effects)
    acknowledgements.forget(moment.session, target)
    staleness.spread(moment, target, replacement)
    if moment.session.is_terminal:
        return
    candidates.forget(moment.session, target)
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
        document.halt_reason = candidates.strike(moment, arbitration) or document.halt_reason


_OPERATIONS = frozenset({Signal.STOP, Signal.CANCEL, Signal.PAUSE, Signal.RESUME})
_COUNTERS: dict[PacketType, Callable[[Advance, OpenPacket], None]] = {
    PacketType.TASK_IR: _task_ir,
    PacketType.SIGNAL: _signal,
    PacketType.EVAL: _eval,
    PacketType.ARTIFACT: _artifact,
    PacketType.DECISION: _decision,
    PacketType.TRANSFER: _transfer,
}

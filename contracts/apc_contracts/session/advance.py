"""`advance`: the only function that changes a session. Deterministic; reads no clock, queue or database."""

from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from apc_contracts.contract.contract import Contract
from apc_contracts.judging.dossier import Said
from apc_contracts.judging.session_view import Identity, read_loop
from apc_contracts.judging.verdict import Verdict, VerdictKind
from apc_contracts.packet import Packet
from apc_contracts.session import barrier, budgets, emissions, knowledge, lifecycle, promotion, receipts, task, verdicts
from apc_contracts.session.events import count_packet, settle
from apc_contracts.session.knowledge import note_content, query_loop
from apc_contracts.session.movement import Advance, Effects, PacketInput, ReceiptsInput, ReleaseInput, Transition
from apc_contracts.session.promotion import register_outcome
from apc_contracts.session.session import HeldPacket, OpenPacket, Session
from apc_contracts.session.task import note_failure, watch
from apc_contracts.vocabulary import CONTROL_TYPES, ORCHESTRATOR, PacketType
from apc_contracts.wire.parsing import ReceivedPacket
from apc_contracts.wire.receipts import ReceiptKind

OWN_EVENTS = frozenset({"delivery_ack", "consumer_apply", "consumer_reject", "retry_scheduled"})
OWN_ENDINGS = frozenset({ReceiptKind.OUTCOME.value, ReceiptKind.REJECT.value, ReceiptKind.RETRY.value})
"""Endings that an agent reports itself; dead letters, expiries and requeues mostly come from others."""
VERIFICATION_KINDS = frozenset({ReceiptKind.VERIFICATION_PASS, ReceiptKind.VERIFICATION_FAIL})


class Advanced(NamedTuple):
    """The session (the same object, changed), its transitions, the orchestrator's packets, all other effects."""

    session: Session
    transitions: list[Transition]
    emissions: list[Packet]
    effects: Effects


def advance(session: Session, given: PacketInput | ReceiptsInput | ReleaseInput, contract: Contract) -> Advanced:
    """Take one input: count it, move the packets and the session, and return the effects.

    The session is changed in place (see `Session`). Raises nothing for any admitted input; TransitionRefused would mean
    a contract file whose machine lacks an edge that its events need.
    """
    effects = Effects()
    if isinstance(given, ReceiptsInput):
        moment = Advance(session, given.receipts[0].packet_id, given.now, effects, contract, decayed=given.decayed)
        _take_receipts(moment, given)
        return _finish(moment, has_packet=False)
    elif isinstance(given, ReleaseInput):
        moment = Advance(session, given.cause, given.now, effects, contract, _rights(given.verdict), given.decayed)
        _take_released(moment, given)
        return _finish(moment, may_sync=given.is_last, must_sync=given.is_last)
    else:
        cause = given.received.packet.packet_id
        moment = Advance(session, cause, given.now, effects, contract, _rights(given.verdict), given.decayed)
        _take_packet(moment, given)
        if effects.resumed:
            return _finish(moment, may_sync=False)
    return _finish(moment)


def confirm_substrate(
    session: Session, packet_id: UUID, now: datetime, contract: Contract, decayed: frozenset[str] = frozenset()
) -> Advanced:
    """Mark a packet confirmed by the substrate stream as delivered and applied; return all that follows."""
    moment = Advance(session, packet_id, now, Effects(), contract, decayed=decayed)
    opened = receipts.confirm_substrate(moment, packet_id)
    if opened is not None:
        _note_verified(session, opened, contract)
    return _finish(moment)


def _finish(moment: Advance, *, may_sync: bool = True, must_sync: bool = False, has_packet: bool = True) -> Advanced:
    """Move the session as far as it can go now, and emit its SYNC: once per cause."""
    session, effects = moment.session, moment.effects
    if not session.is_terminal:
        settle(moment)
        if session.is_terminal:
            _end(moment)
        is_timed = watch(moment)
        if is_timed and not has_packet:
            receipts.record_time(moment)
    if must_sync or (effects.is_sync_due and may_sync):
        # First, because other emissions may move the session on and cause their own SYNC.
        effects.emissions.insert(0, emissions.sync(session, moment.cause, moment.now, moment.contract))
    return Advanced(session, effects.transitions, effects.emissions, effects)


def _take_packet(moment: Advance, given: PacketInput) -> None:
    session, packet = moment.session, given.received.packet
    kind = given.verdict.kind
    if kind in (VerdictKind.REPEAT, VerdictKind.RERUN):
        return
    packet_round = _round_of(session, packet)
    _remember(session, given, packet_round, moment.contract)
    if kind is VerdictKind.REFUSED:
        verdicts.refuse(given, moment.effects)
        _note_refusal(moment, given)
        return
    _hear(session, packet.sender.agent_id)
    note_content(session, session.identities[packet.packet_id], moment.contract)
    if "loop" in given.verdict.facts:
        query_loop(moment, given)
    if packet.sender.agent_id != ORCHESTRATOR and packet.packet_type not in CONTROL_TYPES:
        if not budgets.releases(session.document, packet, moment.rights, moment.contract):
            budgets.draw_packet(session.document, packet)
    if kind is VerdictKind.HELD:
        verdicts.hold(given, moment.effects)
        item = HeldPacket(given.received, given.recipients, packet_round, is_paused=session.is_paused)
        session.held[packet.packet_id] = item
        return
    _accept(moment, given.received, given.recipients, packet_round, given.verdict.facts)


def _accept(
    moment: Advance,
    received: ReceivedPacket,
    recipients: tuple[str, ...],
    packet_round: int,
    facts: dict[str, Any],
    *,
    was_held: bool = False,
) -> None:
    session, contract = moment.session, moment.contract
    was_paused = session.is_paused
    note = None
    if received.packet.packet_type in receipts.ANSWERS:
        note = receipts.settle_ack(moment, received.packet)
    opened = verdicts.route(
        moment,
        received,
        recipients,
        packet_round,
        was_held=was_held,
        record=facts if was_held else None,
        note=note,
    )
    _note_for_rules(moment, received.packet, facts)
    receipts.expect_acks(moment, opened)
    knowledge.judge_arrival(moment, opened)
    if not session.is_terminal:
        budgets.note(session.document, received.packet, moment.rights, moment.now, contract)
    for earlier in knowledge.enter(session, opened, moment.rights, contract):
        lifecycle.complete(moment, earlier)
    count_packet(moment, opened)
    # After counting: what a packet counts for decides whether it rests at VERIFIED.
    verdicts.apply_locally(moment, opened)
    _note_verified(session, opened, contract)
    if was_paused and not session.is_paused:
        _release_paused(moment)


def _note_for_rules(moment: Advance, packet: Packet, facts: dict[str, Any]) -> None:
    """Remember an accepted packet for the rules of the team: whom it asks, what it answers, uses up and counts for."""
    dossier, identity = moment.session.dossier, moment.session.identities[packet.packet_id]
    if dossier is None or packet.sender.agent_id == ORCHESTRATOR:
        return
    user = None if identity.said is None else identity.said.user
    dossier.accept(packet, user, facts.get("rules", {}), moment.now)
    dossier.count(packet, moment.now)


def _release_paused(moment: Advance) -> None:
    """Hand packets that the pause held back to the gate for judgement, in log order."""
    held = [item for item in moment.session.held.values() if item.is_paused]
    for item in held:
        del moment.session.held[item.received.packet.packet_id]
    moment.effects.resumed.extend(held)


def _take_released(moment: Advance, given: ReleaseInput) -> None:
    item = given.item
    packet_id = item.received.packet.packet_id
    refusal = given.verdict.refusal
    if refusal is not None:
        verdicts.deny(moment, item.received, refusal, given.verdict.facts)
    elif given.verdict.kind is VerdictKind.HELD:
        moment.session.held[packet_id] = replace(item, is_paused=moment.session.is_paused)
    else:
        moment.session.identities[packet_id].step = moment.session.step
        facts = given.verdict.facts
        _accept(moment, item.received, item.recipients, item.round, facts, was_held=True)


def _take_receipts(moment: Advance, given: ReceiptsInput) -> None:
    session, first = moment.session, given.receipts[0]
    if first.kind in VERIFICATION_KINDS:
        opened = lifecycle.settle_verification(moment, first)
    elif first.kind is ReceiptKind.EFFECT:
        opened = None
        receipts.note_effect(moment, first)
        if moment.effects.hops and first.by is None:
            _hear_agent(session, first.recipient)
    else:
        opened = receipts.receive(moment, given.receipts)
        _hear_recipient(session, first.recipient, moment.effects)
        _tell_of_failure(moment)
    if opened is not None:
        _note_verified(session, opened, moment.contract)
        if opened.verification == "failed":
            promotion.note_falsified(session, opened.packet.packet_id)


def _tell_of_failure(moment: Advance) -> None:
    """Emit an ERROR for deliveries that receipts have dead-lettered.

    The packet stays open: an operator may requeue it.
    """
    for hop in moment.effects.hops[:1]:
        opened = moment.session.open.get(hop.packet_id)
        if hop.to_state == "DEAD_LETTERED" and opened is not None:
            receipts.tell_sender(moment, opened, hop)
            note_failure(moment, opened, hop)


def _hear_recipient(session: Session, agent_id: str, effects: Effects) -> None:
    """Mark an agent as live by a recorded receipt; what leaves no trace in the log moves nothing."""
    for hop in effects.hops[:1]:
        said = hop.metadata or {}
        if said.get("ended", said.get("late")) in OWN_ENDINGS or not OWN_EVENTS.isdisjoint(hop.events):
            _hear_agent(session, agent_id)


def _note_verified(session: Session, opened: OpenPacket, contract: Contract) -> None:
    """Count a packet's evidence the first time it is VERIFIED."""
    if opened.verification != "passed" or opened.is_evidence_counted:
        return
    opened.is_evidence_counted = True
    if opened.packet.packet_type is PacketType.EVAL and not session.is_terminal:
        register_outcome(session, opened.packet)
        promotion.judge_eval(session, opened.packet, contract)


def _remember(session: Session, given: PacketInput, packet_round: int, contract: Contract) -> None:
    received, packet = given.received, given.received.packet
    identity = Identity(
        packet_hash=received.packet_hash,
        payload_hash=received.payload_hash,
        packet_type=packet.packet_type,
        sender=packet.sender.agent_id,
        swarm_id=packet.sender.swarm_id,
        recipients=given.recipients,
        addressed=tuple(recipient.agent_id for recipient in packet.recipients),
        cause=given.cause,
        root=packet.trace.root_packet_id,
        verdict=given.verdict.kind,
        refusal=given.verdict.refusal,
        # A control packet may name any phase: its answers must not inherit one that was never checked.
        run_phase=session.run_phase if packet.packet_type in CONTROL_TYPES else packet.run_phase,
        round=packet_round,
        generation=packet.trace.generation,
        step=session.step,
        chain=read_loop(given.verdict.facts.get("loop")).chain,
        said=_said(session, given),
    )
    session.remember(packet.packet_id, identity)
    if given.verdict.kind is not VerdictKind.REFUSED:
        session.roots.add(packet.trace.root_packet_id)
        lifecycle.note_claims(session, packet)
        knowledge.note_grounds(session, packet, contract)


def _said(session: Session, given: PacketInput) -> Said | None:
    """Return what rules of a team will read of a packet: nothing of one that was refused, or of the orchestrator's."""
    packet, verdict = given.received.packet, given.verdict
    if session.dossier is None or verdict.kind is VerdictKind.REFUSED or packet.sender.agent_id == ORCHESTRATOR:
        return None
    return session.dossier.said(packet, verdict.facts.get("user"))


def _rights(verdict: Verdict) -> frozenset[str]:
    """Return the sender's rights from the recorded facts, so that a replay finds the same."""
    return frozenset(verdict.facts.get("rights", ()))


def _round_of(session: Session, packet: Packet) -> int:
    """Return a packet's round: the parent's for an agent's packet of research, else the session's."""
    parent = packet.trace.parent_packet_id
    if parent is None or packet.sender.agent_id == ORCHESTRATOR or session.work is not None:
        return session.round
    identity = session.identity(parent)
    return session.round if identity is None else identity.round


def _hear(session: Session, agent_id: str) -> None:
    """Mark an agent that sends a packet as live, and its swarm too."""
    document = session.document
    _hear_agent(session, agent_id)
    swarm = session.swarm_of.get(agent_id)
    if swarm is not None and swarm in document.dead_swarms:
        document.dead_swarms.remove(swarm)
        document.missed_barriers.pop(swarm, None)


def _hear_agent(session: Session, agent_id: str) -> None:
    """Mark an agent, not its swarm, as live by receipts: acknowledging alone still misses barriers."""
    if agent_id in session.document.dead_agents:
        session.document.dead_agents.remove(agent_id)


def _note_refusal(moment: Advance, given: PacketInput) -> None:
    """Halt the session when its last packet is spent, or when the work that it was opened for is refused.

    While a task has some left, it goes on.
    """
    reason = halted_by_refusal(moment.session, given.received.packet, given.verdict)
    if reason is not None:
        moment.session.document.halt_reason = reason


def halted_by_refusal(session: Session, packet: Packet, verdict: Verdict) -> str | None:
    """Return why a refusal halts the session; None when the session goes on."""
    refusal = verdict.refusal
    if refusal is None or session.is_terminal:
        return None
    if _is_opening(session, packet, verdict):
        sender, kind = packet.sender.agent_id, packet.packet_type
        return f"NOT_STARTED the {kind} with which {sender} opened it was refused: {refusal.code} at {refusal.path}"
    budget = session.document.budgets.get("packets")
    if refusal.code != "BUDGET_EXHAUSTED" or budget is None or session.document.spent.get("packets", 0) < budget:
        return None
    return "BUDGET_EXHAUSTED packets"


def _is_opening(session: Session, packet: Packet, verdict: Verdict) -> bool:
    """Return whether this is the work that travelled with the session's START: its sender sends no other."""
    work = session.work
    is_by_opener = packet.sender.agent_id == session.document.opener
    return work is not None and not work.is_started and is_by_opener and "opening" in verdict.facts


def _end(moment: Advance) -> None:
    """Clean up at CLOSED or HALTED: nothing stays held, nothing waits."""
    state = moment.session.state
    receipts.forget_all_acks(moment.session)
    task.end_all(moment)
    barrier.deny_all(moment, "SESSION_TERMINAL", f"the session ended ({state}) before this packet was judged")
    lifecycle.release_rest(moment)

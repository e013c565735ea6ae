"""The facts stored with a verdict: what its rules read that cannot be derived from the packet's bytes.

The record is kept for every packet, so it is small. Only the facts of the deciding rule are kept; rules that passed
leave none. `recorded` recomputes the same verdict from it.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from apc_contracts.admission.case import Case, Ruling, Stage
from apc_contracts.admission.rules.capacity import bytes_have_room, first_full, session_has_room
from apc_contracts.admission.rules.drift import DRIFT_FACTS
from apc_contracts.admission.rules.phase import content_fault
from apc_contracts.admission.rules.routing import asks_role, is_ask, swarm_of, why_unreachable
from apc_contracts.admission.rules.task import places_of, unready_members
from apc_contracts.admission.rules.waits import is_answer, places_read, wake_of, wake_places
from apc_contracts.judging.facts import SignatureState
from apc_contracts.judging.session_view import NO_LOOP, Identity, Part, SessionView
from apc_contracts.judging.verdict import Refusal, VerdictKind
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import RetractionPayload, SignalFields, TaskIrPayload, TransferPayload
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.vocabulary import ALL_RECIPIENTS, ORCHESTRATOR, PROTOCOL_VERSION, PacketType, Right

Record = dict[str, Any]


def facts_record(case: Case, stage: Stage, ruling: Ruling) -> Record:
    """Return the record of a judgement that ended in `ruling`: JSON values only."""
    facts = case.facts
    record: Record = {"now": facts.now.isoformat()}
    if stage is not Stage.ARRIVAL:
        record["stage"] = stage.value
    if facts.registry is None:
        record["offline"] = True
    else:
        _note_sender(record, case)
    if case.session is not None:
        record["session"] = _session(case, case.session)
        if case.parent is not None:
            record["parent"] = _parent(case.parent, case)
        if case.packet.packet_type is PacketType.TRANSFER:
            record["transfer"] = _transfer(case, case.session)
    elif facts.registry is not None and _opens_task(case):
        record["places"] = {place: list(agents) for place, agents in places_of(case).items()}
    if facts.decay is not None:
        record["decay"] = dict(facts.decay)
    if case.loop is not NO_LOOP:
        loop = case.loop.record
        if loop:
            record["loop"] = loop
    if case.team is not None:
        if case.team.values:
            record["rules"] = case.team.values
        if case.team.observed:
            record["observed"] = case.team.observed
    if ruling is not None:
        _note_evidence(record, case, ruling)
        if isinstance(ruling, Refusal) and ruling.code == "EVIDENCE_UNKNOWN":
            record["evidence"] = [ruling.path, ruling.message]
        if facts.is_opening and isinstance(ruling, Refusal):
            record["opening"] = True
    return record


def note_warnings(record: Record, case: Case, warnings: Sequence[Refusal]) -> None:
    """Add the failed anti-drift checks of mode `warn`: names for readers, facts for a replay."""
    record["warnings"] = [warning.rule for warning in warnings]
    record["drift"] = _drift_facts(case)


def note_place(record: Record, packet: Packet, session: SessionView | None, recipients: tuple[str, ...]) -> None:
    """Add what an entry needs beside its verdict: whom the packet names, and its phase, where the entry has others."""
    named = packet.recipients[0].agent_id
    is_resolved = recipients == (ORCHESTRATOR,) and len(packet.recipients) == 1 and named != ORCHESTRATOR
    if named == ALL_RECIPIENTS or asks_role(packet) or is_resolved:
        record["to"] = named
    if session is not None and packet.run_phase is not session.run_phase:
        record["in_phase"] = session.run_phase.value


def _note_sender(record: Record, case: Case) -> None:
    facts, sender = case.facts, case.sender
    record["user"] = facts.user_id
    if sender is not None and sender.rights and not case.is_from_orchestrator:
        record["rights"] = list(_names_of(sender.rights))
    if facts.signature is not SignatureState.ABSENT:
        record["signature"] = facts.signature.value
    if facts.cause is not None:
        record["cause" if facts.is_cause_delivered else "claimed_cause"] = str(facts.cause)
        record["ordinal"] = facts.ordinal


@lru_cache(256)
def _names_of(rights: frozenset[Right]) -> tuple[str, ...]:
    """Return the names of rights, memoised: there are few distinct sets, and every record holds one."""
    return tuple(sorted(right.value for right in rights))


def _session(case: Case, session: SessionView) -> Record:
    record: Record = {
        "state": session.state,
        "phase": session.run_phase,
        "round": session.round,
        "generation": session.generation,
        "step": session.step,
    }
    if case.packet.run_phase is not session.run_phase:
        record["phase_step"] = session.phase_step
    if case.parent is not None and case.parent.round != session.round:
        record["last_generation"] = session.last_generation_of(case.parent.round)
    return record


def _parent(parent: Identity, case: Case) -> list[Any]:
    """Return [type, swarm, phase, round, step], and the root if the packet does not keep it."""
    kept: list[Any] = [parent.packet_type, parent.swarm_id, parent.run_phase, parent.round, parent.step]
    return kept if parent.root == case.packet.trace.root_packet_id else [*kept, str(parent.root)]


def _transfer(case: Case, session: SessionView) -> Record:
    payload, verified = case.packet.payload_as(TransferPayload), session.verified_scores
    record: Record = {
        "scores": {swarm: verified[swarm] for swarm in (payload.from_swarm, payload.to_swarm) if swarm in verified},
        "accepted": session.accepted_transfers(payload.to_swarm),
        "swarms": sorted(session.swarms),
        "holders": sorted(session.protocol_holders(payload.protocol_id)),
    }
    smallest_top_k = session.smallest_top_k(payload.to_swarm)
    if smallest_top_k is not None:
        record["top_k"] = smallest_top_k
    if case.generation != case.packet.trace.generation:
        record["generation"] = case.generation
    return record


def _note_evidence(record: Record, case: Case, ruling: Refusal | VerdictKind) -> None:
    key = ruling.code if isinstance(ruling, Refusal) else ruling.value
    evidence = _EVIDENCE.get(key)
    if evidence is not None:
        record.update(evidence(case))


def _sender_mismatch(case: Case) -> Record:
    registered = case.sender.broker_user if case.sender is not None else None
    facts = case.facts
    return {"received": facts.is_received, "copies": facts.has_copy_headers, "registered_user": registered}


def _unknown_sender(case: Case) -> Record:
    return {"sender": "unknown" if case.sender is None else "revoked"}


def _known_before(case: Case) -> Record:
    known = case.session.identity(case.packet.packet_id) if case.session is not None else None
    if known is None:
        return {"is_cause_delivered": case.facts.is_cause_delivered}
    return {
        "first": {
            "packet_hash": known.packet_hash.hex(),
            "payload_hash": known.payload_hash.hex(),
            "packet_type": known.packet_type.value,
            "sender": known.sender,
            "addressed": list(known.addressed),
            "cause": None if known.cause is None else str(known.cause),
        }
    }


def _opens_task(case: Case) -> bool:
    payload = case.packet.payload
    return isinstance(payload, SignalFields) and isinstance(payload.session, TaskSessionSpec)


def _contract(case: Case) -> Record:
    return {"is_contract_known": case.facts.is_contract_known}


def _shard(case: Case) -> Record:
    return {"hashes_to_shard": case.facts.hashes_to_shard}


def _ended(case: Case) -> Record:
    return {"is_terminal": True}


def _paused(case: Case) -> Record:
    session = case.session
    return {"held": session.held_count} if session is not None and session.is_paused else {}


def _authority(case: Case) -> Record:
    record: Record = {}
    if case.sender is not None:
        record["registered"] = [case.sender.role, case.sender.swarm_id]
    if case.session is not None:
        record["is_member"] = case.session.is_member(case.sender_id)
        held = case.session.task_places_of(case.sender_id)
        if held is not None:
            done = None if held.done is None else str(held.done)
            record["task_places"] = [held.is_decider, held.is_reviewer, done]
    return record | _target(case) | _question(case)


def _question(case: Case) -> Record:
    """Return what an ASK, ANSWER or WAKE found in its session."""
    if case.packet.packet_type is not PacketType.SIGNAL or case.packet.protocol_version == PROTOCOL_VERSION:
        return {}
    wake = wake_of(case)
    if wake is not None:
        timer = wake_places(case, wake)
        return {"wake": None if timer is None else [timer.pending, timer.is_pending, _time(timer.ends_at)]}
    if not (is_ask(case.packet) or is_answer(case)):
        return {}
    places = places_read(case)
    if places is None:
        return {"question": None}
    asked = [places.asker, list(places.may_answer), places.role, places.payload_hash]
    return {"question": [*asked, places.open_questions, _time(places.ends_at), places.returns]}


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _target(case: Case) -> Record:
    if case.session is None or case.packet.packet_type is not PacketType.RETRACTION:
        return {}
    target = case.session.identity(case.packet.payload_as(RetractionPayload).target_packet_id)
    return {"target": None if target is None else [target.sender, target.retracted]}


def _recipients(case: Case) -> Record:
    registry, packet_type = case.facts.registry or {}, case.packet.packet_type
    ids = [recipient.agent_id for recipient in case.packet.recipients]
    reasons = {agent_id: why_unreachable(case, agent_id) for agent_id in ids}
    record: Record = {"unreachable": {agent_id: why for agent_id, why in reasons.items() if why is not None}}
    if packet_type is PacketType.TRANSFER:
        swarms = {recipient.agent_id: swarm_of(recipient, registry) for recipient in case.packet.recipients}
        record["recipient_swarms"] = {agent_id: swarm for agent_id, swarm in swarms.items() if swarm is not None}
    return record | _unready(case)


def _unready(case: Case) -> Record:
    """Return the members that cannot take part, for a START of apc/1.1."""
    if case.session is not None or case.packet.packet_type is not PacketType.SIGNAL:
        return {}
    unready = unready_members(case)
    return {"unready": dict(unready)} if unready and case.packet.protocol_version != PROTOCOL_VERSION else {}


def _content(case: Case) -> Record:
    fault = content_fault(case)
    return {} if fault is None else {"content": [fault.path, fault.message, fault.schema_hash]}


def _decayed(case: Case) -> Record:
    lineage = case.packet.lineage
    named = {
        case.packet.payload_as(TransferPayload).protocol_id,
        *(lineage.parent_protocol_ids if lineage is not None else ()),
    }
    return {"decayed": sorted(named & case.facts.decayed_protocols)}


def _drift(case: Case) -> Record:
    return {"drift": _drift_facts(case)}


def _drift_facts(case: Case) -> Record:
    """Return the facts that a recorded session must answer again; the others follow from the packet."""
    names = ("task_is_known", "root_is_known", "parent_is_known", "contract_is_deployed", "brings_new_symbols")
    return {name: DRIFT_FACTS[name](case) for name in names}


def _full(case: Case) -> Record:
    full = [first_full(case, recipient.agent_id) for recipient in case.packet.recipients]
    record: Record = {"full": sorted({agent_id for agent_id in full if agent_id})}
    record["bound"] = case.facts.outstanding_bound
    if case.facts.own_outstanding is not None:
        record["shared"] = True
    if case.session is not None and case.packet.routing.requires_ack:
        record["pending_acks"] = case.session.pending_acks
    if bytes_have_room(case) is not None and case.session is not None:
        record["open_bytes"] = [case.session.open_bytes, case.session.open_bytes_of(case.sender_id)]
    return record | _paused(case) | _question(case)


def _quota(case: Case) -> Record:
    """Return no facts: a pause would have held the packet before this rule was checked."""
    return {"quota_wait_ms": case.facts.quota_wait_ms} | _paused(case)


def _budget(case: Case) -> Record:
    """Return no facts: a pause would have held the packet before this rule was checked."""
    session, packet = case.session, case.packet
    if session is None:
        return {}
    task_id, now = packet.trace.task_id, case.facts.now
    record: Record = {"parts": _parts(session.budget_parts(task_id, now))}
    if packet.packet_type is PacketType.TASK_IR:
        record["cut_from"] = _parts(
            session.parts_to_cut(packet.payload_as(TaskIrPayload).ir_header.task_id, task_id, now)
        )
        record["task_budgets"] = session.task_budgets
    if session_has_room(case) is not None:
        record["items"] = session.items
    return record | _paused(case)


def _parts(parts: Mapping[str, Part]) -> Record:
    return {name: [part.holder, part.left] for name, part in parts.items()}


_EVIDENCE: dict[str, Callable[[Case], Record]] = {
    "SENDER_MISMATCH": _sender_mismatch,
    "UNKNOWN_SENDER": _unknown_sender,
    "DUPLICATE_CONFLICT": _known_before,
    VerdictKind.REPEAT: _known_before,
    VerdictKind.RERUN: _known_before,
    "UNKNOWN_SESSION": _shard,
    "UNKNOWN_CONTRACT": _contract,
    "SESSION_TERMINAL": _ended,
    "SESSION_PAUSED": _paused,
    VerdictKind.HELD: _paused,
    "NOT_AUTHORIZED": _authority,
    "UNROUTABLE": _recipients,
    "CONTENT_INVALID": _content,
    "PROTOCOL_DECAYED": _decayed,
    "NOT_RETRACTABLE": _target,
    "DRIFT_CHECK_FAILED": _drift,
    "LOOP_DETECTED": _paused,
    "QUOTA_EXCEEDED": _quota,
    "OVERLOADED": _full,
    "BUDGET_EXHAUSTED": _budget,
}
"""Facts kept in addition to the common ones, by the code or kind that decided."""

"""Recompute a verdict from bytes, record and contract alone: what `replay --verify` compares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from apc_contracts.admission.admit import judge
from apc_contracts.admission.case import Case, Stage
from apc_contracts.admission.record import Record
from apc_contracts.admission.rules.routing import is_question
from apc_contracts.contract.contract import Contract
from apc_contracts.identity.registry import ANY_SCHEMA, CLIENTS, Kind, Registration
from apc_contracts.judging.facts import Facts, SignatureState
from apc_contracts.judging.session_view import (
    NO_LOOP,
    Identity,
    LoopState,
    Part,
    QuestionPlaces,
    SessionView,
    TaskPlaces,
    WakePlaces,
    read_loop,
)
from apc_contracts.judging.verdict import Verdict, VerdictKind
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import AnswerOutcome, RetractionPayload, SignalPayload, TransferPayload
from apc_contracts.schemas import ContentFault
from apc_contracts.vocabulary import ALL_RECIPIENTS, ORCHESTRATOR, PacketType, Right, RunPhase
from apc_contracts.wire.parsing import ReceivedPacket

# A session made of plain values: to judge a recorded packet again, for what-if replays and for tests.


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """A SessionView made of plain values.

    A set that is None contains everything: every member, task, root, key, protocol.
    """

    session_id: str
    state: str
    run_phase: RunPhase
    round: int = 1
    generation: int = 0
    step: int = 0
    phase_step: int = 0
    generation_limit: int = 0
    is_paused: bool = False
    is_terminal: bool = False
    held_count: int = 0
    pending_acks: int = 0
    task_budgets: int = 0
    items: int = 0
    open_bytes: int = 0
    own_open_bytes: int = 0
    parts: Mapping[str, Part] = field(default_factory=dict)
    cut_from: Mapping[str, Part] = field(default_factory=dict)
    givers: Mapping[str, str] = field(default_factory=dict)
    verified_scores: Mapping[str, float] = field(default_factory=dict)
    swarms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    identities: Mapping[UUID, Identity] = field(default_factory=dict)
    members: frozenset[str] | None = None
    tasks: frozenset[str] | None = None
    roots: frozenset[UUID] | None = None
    symbolic_keys: frozenset[str] | None = None
    protocols: Mapping[str, frozenset[str]] | None = None
    last_generations: Mapping[int, int] = field(default_factory=dict)
    accepted: Mapping[str, int] = field(default_factory=dict)
    top_k: Mapping[str, int] = field(default_factory=dict)
    loop: LoopState = NO_LOOP
    task_places: TaskPlaces | None = None
    question: QuestionPlaces | None = None
    wake: WakePlaces | None = None
    dossier: None = None
    """The rules of a team read what the record has."""

    def is_accepted(self, packet_id: UUID) -> bool:
        """Return whether a packet of the session was accepted, as far as it is known here."""
        return packet_id in self.identities

    effects: Mapping[str, str] = field(default_factory=dict)

    def effect(self, name: str) -> str:
        """Return where an effect stands."""
        return self.effects.get(name, "absent")

    def wake_places(self, agent_id: str, key: str) -> WakePlaces | None:
        """Return what this snapshot's WAKE found."""
        return self.wake

    def question_places(self, packet_id: UUID | None) -> QuestionPlaces | None:
        """Return what this snapshot's packet asks or answers."""
        return self.question

    def task_places_of(self, agent_id: str) -> TaskPlaces | None:
        """Return the places of this snapshot's sender."""
        return self.task_places

    def identity(self, packet_id: UUID) -> Identity | None:
        """Return what is remembered of a packet."""
        return self.identities.get(packet_id)

    def open_bytes_of(self, sender: str) -> int:
        """Return the bytes of unfinished packets of this snapshot's sender."""
        return self.own_open_bytes

    def budget_parts(self, task_id: str, now: datetime) -> dict[str, Part]:
        """Return what is left for this snapshot's task."""
        return dict(self.parts)

    def parts_to_cut(self, task_id: str, giver_task: str, now: datetime) -> dict[str, Part]:
        """Return what this snapshot's TASK_IR can reserve."""
        return dict(self.cut_from)

    def task_giver(self, task_id: str) -> str | None:
        """Return who reserved a part for the task."""
        return self.givers.get(task_id)

    def is_member(self, agent_id: str) -> bool:
        """Return whether the agent belongs to the session."""
        return self.members is None or agent_id in self.members

    def task_is_known(self, task_id: str) -> bool:
        """Return whether the task is within scope."""
        return self.tasks is None or task_id in self.tasks

    def root_is_known(self, packet_id: UUID) -> bool:
        """Return whether an admitted packet has this root."""
        return self.roots is None or packet_id in self.roots

    def symbolic_key_is_known(self, key: str) -> bool:
        """Return whether the session has seen the key."""
        return self.symbolic_keys is None or key in self.symbolic_keys

    def protocol_is_known(self, protocol_id: str) -> bool:
        """Return whether the session has seen the protocol."""
        return self.protocols is None or protocol_id in self.protocols

    def protocol_holders(self, protocol_id: str) -> frozenset[str]:
        """Return the swarms that hold the protocol."""
        return (self.protocols or {}).get(protocol_id, frozenset())

    def last_generation_of(self, round_number: int) -> int:
        """Return the last generation of a round; 0 when none is recorded."""
        return self.generation if round_number == self.round else self.last_generations.get(round_number, 0)

    def accepted_transfers(self, to_swarm: str) -> int:
        """Return the number of TRANSFERs accepted for that swarm in the current round and generation."""
        return self.accepted.get(to_swarm, 0)

    def smallest_top_k(self, to_swarm: str) -> int | None:
        """Return the smallest top_k among them; None when none named one."""
        return self.top_k.get(to_swarm)

    def loop_of(self, _packet: Packet, _payload_hash: bytes, _cause: UUID | None) -> LoopState:
        """Return the loop state of the one packet that this snapshot is for."""
        return self.loop


_EVERY_TYPE = frozenset(PacketType)
_EVERY_SCHEMA = frozenset({ANY_SCHEMA})


def judge_recorded(received: ReceivedPacket, record: Record, contract: Contract) -> Verdict:
    """Judge a logged packet by its recorded facts (`Verdict.facts`); kind and refusal come out as they did then.

    Raises:
        KeyError, ValueError: `facts_record` did not make this record.
    """
    packet = received.packet
    session = recorded_session(packet, record) if "session" in record else None
    return judge_in_session(received, record, session, contract)


def judge_in_session(
    received: ReceivedPacket, record: Record, session: SessionView | None, contract: Contract
) -> Verdict:
    """Judge like `judge_recorded`, but in the session given: facts about the session are computed, not read."""
    generation = record.get("transfer", {}).get("generation")
    case = Case(received.packet, session, recorded_facts(received, record), contract, generation)
    return judge(case, Stage(record.get("stage", Stage.ARRIVAL)))


def recorded_facts(received: ReceivedPacket, record: Record) -> Facts:
    """Return the facts that neither packet nor session give, as they were recorded."""
    is_offline = record.get("offline", False)
    cause, drift = record.get("cause", record.get("claimed_cause")), record.get("drift", {})
    return Facts(
        now=datetime.fromisoformat(record["now"]),
        registry=None if is_offline else _registry(received.packet, record),
        user_id=record.get("user"),
        is_received=record.get("received", False),
        has_copy_headers=record.get("copies", False),
        hashes_to_shard=record.get("hashes_to_shard", True),
        signature=SignatureState(record.get("signature", SignatureState.ABSENT)),
        packet_hash=received.packet_hash,
        payload_hash=received.payload_hash,
        cause=None if cause is None else UUID(cause),
        ordinal=record.get("ordinal"),
        is_cause_delivered=_is_cause_delivered(received.packet, record),
        is_opening="opening" in record,
        is_contract_deployed=drift.get("contract_is_deployed", True),
        is_contract_known=record.get("is_contract_known", True),
        content_fault=ContentFault(*record["content"]) if "content" in record else None,
        places=record.get("places"),
        unready=record.get("unready", {}),
        outstanding={agent_id: record["bound"] for agent_id in record.get("full", ())},
        own_outstanding={agent_id: record["bound"] for agent_id in record["full"]} if "shared" in record else None,
        outstanding_bound=record.get("bound"),
        quota_wait_ms=record.get("quota_wait_ms", 0),
        decayed_protocols=frozenset(record.get("decayed", ())),
        rules=record.get("rules", {}),
        evidence=tuple(record["evidence"]) if "evidence" in record else None,
        decay=record.get("decay"),
    )


def _is_cause_delivered(packet: Packet, record: Record) -> bool:
    """Return whether the cause was delivered to the sender.

    Current records say so under the fact's own name, older ones in the drift facts.
    """
    if "claimed_cause" in record:
        return False
    if "is_cause_delivered" in record:
        return bool(record["is_cause_delivered"])
    # A parent that the session holds is unknown only by its root, no matter who received it.
    names_parent = "parent" not in record and record.get("cause") == str(packet.trace.parent_packet_id)
    return not names_parent or bool(record.get("drift", {}).get("parent_is_known", True))


def _registry(packet: Packet, record: Record) -> dict[str, Registration]:
    first = packet.recipients[0]
    broken, swarms = record.get("unreachable", {}), record.get("recipient_swarms", {})
    # Unless recorded otherwise a TRANSFER reached the swarm that it names.
    usual_swarm = (
        packet.payload_as(TransferPayload).to_swarm
        if packet.packet_type is PacketType.TRANSFER
        else first.swarm_id or ""
    )
    named = {recipient.agent_id for recipient in packet.recipients} | set(record.get("full", ()))
    registry = {
        agent_id: Registration(
            agent_id,
            broker_user="",
            role=first.role or "",
            swarm_id=CLIENTS if broken.get(agent_id) == "client" else swarms.get(agent_id, usual_swarm),
            handles=frozenset() if broken.get(agent_id) in ("deaf", "client") else _EVERY_TYPE,
            is_revoked=broken.get(agent_id) == "revoked",
            schemas=frozenset() if broken.get(agent_id) == "foreign" else _EVERY_SCHEMA,
            kind=_kind(packet, broken.get(agent_id)),
        )
        for agent_id in named
        if broken.get(agent_id) not in ("unknown", "nobody") and agent_id not in (ALL_RECIPIENTS, ORCHESTRATOR)
    }
    # A sender may name itself as a recipient; its facts as the sender take precedence.
    sender = _sender(packet, record, registry.pop(packet.sender.agent_id, None))
    if sender is not None:
        registry[sender.agent_id] = sender
    return registry


def _kind(packet: Packet, why: str | None) -> Kind:
    return Kind.PERSON if why == "person" or (is_question(packet) and why != "agent") else Kind.AGENT


def _sender(packet: Packet, record: Record, as_recipient: Registration | None) -> Registration | None:
    actor, state = packet.sender, record.get("sender")
    if state == "unknown" or ("registered_user" in record and record["registered_user"] is None):
        return None
    role, swarm_id = record.get("registered", (actor.role, actor.swarm_id))
    return Registration(
        actor.agent_id,
        broker_user=record.get("registered_user", record.get("user")) or "",
        role=role,
        swarm_id=swarm_id,
        rights=frozenset(Right(right) for right in record.get("rights", ())),
        handles=_EVERY_TYPE if as_recipient is None else as_recipient.handles,
        is_revoked=state == "revoked" or (as_recipient is not None and as_recipient.is_revoked),
        schemas=_EVERY_SCHEMA if as_recipient is None else as_recipient.schemas,
    )


def recorded_session(packet: Packet, record: Record) -> SessionSnapshot:
    now, transfer, drift = record["session"], record.get("transfer", {}), record.get("drift", {})
    trace, held = packet.trace, record.get("held")
    knows_symbols = not drift.get("brings_new_symbols", True)
    return SessionSnapshot(
        session_id=trace.session_id,
        state=now["state"],
        run_phase=RunPhase(now["phase"]),
        round=now["round"],
        generation=now["generation"],
        step=now["step"],
        phase_step=now.get("phase_step", 0),
        is_paused=held is not None,
        is_terminal=record.get("is_terminal", False),
        held_count=held or 0,
        pending_acks=record.get("pending_acks", 0),
        task_budgets=record.get("task_budgets", 0),
        items=record.get("items", 0),
        open_bytes=record.get("open_bytes", (0, 0))[0],
        own_open_bytes=record.get("open_bytes", (0, 0))[1],
        parts=_parts(record.get("parts", {})),
        cut_from=_parts(record.get("cut_from", {})),
        verified_scores=transfer.get("scores", {}),
        swarms={swarm: () for swarm in transfer.get("swarms", ())},
        identities=_identities(packet, record),
        members=None if record.get("is_member", True) else frozenset(),
        tasks=None if drift.get("task_is_known", True) else frozenset(),
        roots=None if drift.get("root_is_known", True) else frozenset(),
        symbolic_keys=None if knows_symbols else frozenset(),
        protocols=_protocols(packet, transfer, knows_symbols),
        last_generations=_last_generations(record, now),
        accepted=_accepted(packet, transfer),
        loop=read_loop(record.get("loop")),
        task_places=_task_places(record.get("task_places")),
        question=_question(packet, record),
        wake=_wake(record),
        top_k={packet.payload_as(TransferPayload).to_swarm: transfer["top_k"]} if "top_k" in transfer else {},
    )


def _task_places(recorded: list[Any] | None) -> TaskPlaces | None:
    if recorded is None:
        return None
    is_decider, is_reviewer, done = recorded
    return TaskPlaces(is_decider, is_reviewer, None if done is None else UUID(done))


def _question(packet: Packet, record: Record) -> QuestionPlaces | None:
    """Return what an ASK or ANSWER found; what was accepted found all in order, and the record does not repeat it."""
    payload = packet.payload
    if "question" in record:
        recorded = record["question"]
        if recorded is None:
            return None
        asker, may_answer, role, payload_hash, count, ends_at, *returns = recorded
        given = (asker, tuple(may_answer), role, payload_hash, count, _time(ends_at))
        return QuestionPlaces(*given, returns=returns[0] if returns else "")
    if not isinstance(payload, SignalPayload) or payload.answer is None:
        return QuestionPlaces()
    asker, seen, answer = packet.recipients[0].agent_id, payload.answer.seen or "", payload.answer
    returns = ANY_SCHEMA if answer.outcome is AnswerOutcome.FAILED else ""
    returns = returns if answer.result is None else answer.result.schema_id
    return QuestionPlaces(asker, (packet.sender.agent_id,), payload_hash=seen, returns=returns)


def _wake(record: Record) -> WakePlaces | None:
    """Return what a WAKE found; what was accepted found all in order."""
    if "wake" not in record:
        return WakePlaces()
    recorded = record["wake"]
    return None if recorded is None else WakePlaces(recorded[0], recorded[1], _time(recorded[2]))


def _time(recorded: str | None) -> datetime | None:
    return None if recorded is None else datetime.fromisoformat(recorded)


def _parts(recorded: Record) -> dict[str, Part]:
    return {name: Part(holder, left) for name, (holder, left) in recorded.items()}


def _protocols(packet: Packet, transfer: Record, knows_symbols: bool) -> dict[str, frozenset[str]]:
    parents = packet.lineage.parent_protocol_ids if packet.lineage is not None and knows_symbols else ()
    protocols: dict[str, frozenset[str]] = dict.fromkeys(parents, frozenset())
    if packet.packet_type is PacketType.TRANSFER:
        protocols[packet.payload_as(TransferPayload).protocol_id] = frozenset(transfer.get("holders", ()))
    return protocols


def _last_generations(record: Record, now: Record) -> dict[int, int]:
    return {record["parent"][3]: now["last_generation"]} if "last_generation" in now else {}


def _accepted(packet: Packet, transfer: Record) -> dict[str, int]:
    return {packet.payload_as(TransferPayload).to_swarm: transfer["accepted"]} if transfer else {}


def _identities(packet: Packet, record: Record) -> dict[UUID, Identity]:
    known: dict[UUID, Identity] = {}
    parent_id = packet.trace.parent_packet_id
    if "parent" in record and parent_id is not None:
        kind, swarm, phase, parent_round, step, *root = record["parent"]
        known[parent_id] = _identity(
            packet,
            packet_type=PacketType(kind),
            swarm_id=swarm,
            run_phase=RunPhase(phase),
            round=parent_round,
            step=step,
            root=UUID(root[0]) if root else packet.trace.root_packet_id,
        )
    if isinstance(packet.payload, RetractionPayload):
        target = record.get("target", [packet.sender.agent_id, False])
        if target is not None:
            known[packet.payload.target_packet_id] = _identity(packet, sender=target[0], retracted=target[1])
    if "first" in record:
        known[packet.packet_id] = _first(packet, record["first"])
    return known


def _first(packet: Packet, first: Record) -> Identity:
    return _identity(
        packet,
        packet_hash=bytes.fromhex(first["packet_hash"]),
        payload_hash=bytes.fromhex(first["payload_hash"]),
        packet_type=PacketType(first["packet_type"]),
        sender=first["sender"],
        addressed=tuple(first["addressed"]),
        cause=None if first["cause"] is None else UUID(first["cause"]),
    )


def _identity(packet: Packet, **known: Any) -> Identity:
    """Return an identity of which only `known` was recorded; its other fields are never read."""
    fields: dict[str, Any] = {
        "packet_hash": b"",
        "payload_hash": b"",
        "packet_type": packet.packet_type,
        "sender": packet.sender.agent_id,
        "swarm_id": packet.sender.swarm_id,
        "recipients": (),
        "addressed": (),
        "cause": None,
        "root": packet.trace.root_packet_id,
        "verdict": VerdictKind.ACCEPTED,
        "refusal": None,
        "run_phase": packet.run_phase,
        "round": 0,
        "generation": packet.trace.generation,
        "step": 0,
    }
    return Identity(**(fields | known))

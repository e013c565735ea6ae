"""A session without a broker or a database: the same `admit` and `advance` as the gate, driven by hand."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from apc_contracts import (
    Actor,
    ClaimPayload,
    EvalPayload,
    OpenEvalPayload,
    Packet,
    ProofBundle,
    Recipient,
    Routing,
    SignalPayload,
    Trace,
    new_packet_id,
    read_packet,
)
from apc_contracts.admission.admit import admit, judge_held
from apc_contracts.contract.contract import Contract
from apc_contracts.identity.registry import SPEAKS_ALL, Registration
from apc_contracts.judging.facts import Facts
from apc_contracts.judging.verdict import Verdict, VerdictKind
from apc_contracts.packet import PACKET_TYPES, TYPE_OF_PAYLOAD
from apc_contracts.payloads.by_type import Payload
from apc_contracts.payloads.session_signals import SessionSpec, SwarmSpec
from apc_contracts.session.advance import advance, confirm_substrate
from apc_contracts.session.emissions import timer
from apc_contracts.session.lifecycle import resolve_recipients
from apc_contracts.session.movement import Effects, PacketInput, ReceiptsInput, ReleaseInput, Route, Transition
from apc_contracts.session.opening import open_session
from apc_contracts.session.session import HeldPacket, Session
from apc_contracts.vocabulary import (
    ALL_RECIPIENTS,
    ORCHESTRATOR,
    PROTOCOL_VERSION,
    SUBSTRATE_RECIPIENT,
    Channel,
    DeliveryMode,
    PacketType,
    Right,
    Signal,
)
from apc_contracts.wire.parsing import seal
from apc_contracts.wire.receipts import Receipt, ReceiptKind

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


def registration(agent_id: str, swarm: str, *rights: Right) -> Registration:
    """Return an agent that handles everything."""
    every = frozenset(PacketType)
    return Registration(agent_id, f"agent.{agent_id}", "role", swarm, frozenset(rights), every, speaks=SPEAKS_ALL)


REGISTRY = {
    one.agent_id: one
    for one in (
        registration("librarian", "library", Right.OPERATE),
        registration("red-1", "red"),
        registration("blue-1", "blue"),
        registration("sentinel", "watch", Right.VETO, Right.VALIDATE),
        registration("judge", "bench", Right.DECIDE),
        Registration(ORCHESTRATOR, ORCHESTRATOR, ORCHESTRATOR, ORCHESTRATOR, frozenset(Right), frozenset(PacketType)),
    )
}


ROUTING: dict[str, Any] = {"priority": 4, "ttl_ms": 3_600_000, "requires_ack": False}


@dataclass
class Simulation:
    """Sends packets as agents, acknowledges deliveries, moves the clock. Nothing waits: time is a number."""

    contract: Contract
    opened: Session | None = None
    now: datetime = BEGINNING
    transitions: list[Transition] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    """Every accepted packet, the orchestrator's own included."""
    denied: dict[UUID, str] = field(default_factory=dict)
    inboxes: dict[str, deque[tuple[Packet, int]]] = field(default_factory=dict)
    is_opening: bool = False
    """Of the packet that is sent now."""
    put_off: list[tuple[Packet, str, int]] = field(default_factory=list)
    """Retries in the delay queue: (packet, recipient, attempt)."""
    stream: list[Packet] = field(default_factory=list)
    """Packets that the substrate has not confirmed yet."""
    effects: list[Effects] = field(default_factory=list)
    verification: tuple[ReceiptKind, ...] = (ReceiptKind.VERIFICATION_PASS,)
    """What comes of a verification; empty = nothing yet."""
    decayed: frozenset[str] = frozenset()
    """Protocols under a block."""
    registry: dict[str, Registration] = field(default_factory=lambda: REGISTRY)

    def start(self, packet_id: UUID | None = None, **spec: Any) -> Packet:
        """Open the session with two swarms, red and blue."""
        fields: dict[str, Any] = {
            "swarms": (
                SwarmSpec(swarm_id="red", agents=("red-1",)),
                SwarmSpec(swarm_id="blue", agents=("blue-1",)),
            ),
            "members": ("sentinel", "judge"),
            "task_ids": ("task-1",),
            "generation_limit": 1,
            "generation_deadline_ms": 10_000,
            "state_deadline_ms": 100_000,
        } | spec
        payload = SignalPayload(signal=Signal.START, session=SessionSpec(**fields))
        packet, verdict = self.send("librarian", payload, to=ORCHESTRATOR, packet_id=packet_id)
        assert verdict.kind is VerdictKind.ACCEPTED, verdict.refusal
        return packet

    def build(
        self,
        agent: str,
        payload: Payload,
        to: str | Iterable[str] = ORCHESTRATOR,
        *,
        parent: Packet | UUID | None = None,
        generation: int | None = None,
        keys: tuple[str, ...] = (),
        **fields: Any,
    ) -> Packet:
        """Return a packet of an agent in the session as it is now."""
        session = self.opened
        who = self.registry[agent]
        packet_type = TYPE_OF_PAYLOAD[type(payload)]
        packet_id = fields.pop("packet_id", None) or new_packet_id()
        parent_id = parent.packet_id if isinstance(parent, Packet) else parent
        identity = session.identity(parent_id) if session and parent_id else None
        recipients = (to,) if isinstance(to, str) else tuple(to)
        mode = DeliveryMode.DIRECT if len(recipients) == 1 else DeliveryMode.MULTICAST
        if recipients == (ALL_RECIPIENTS,):
            mode = DeliveryMode.BROADCAST
        elif recipients == (SUBSTRATE_RECIPIENT,):
            mode = DeliveryMode.SUBSTRATE
        if isinstance(payload, ClaimPayload | EvalPayload | OpenEvalPayload):
            fields.setdefault("proof_bundle", ProofBundle(evidence_refs=("sha256:" + "0" * 64,), falsifiers=()))
        return PACKET_TYPES[packet_type](
            protocol_version=fields.pop("version", PROTOCOL_VERSION),
            packet_id=packet_id,
            packet_type=packet_type,
            channel=fields.pop("channel", Channel.INTER_AGENT),
            run_phase=fields.pop("run_phase", session.run_phase if session else "RESEARCH"),
            created_at=self.now,
            sender=Actor(agent_id=agent, role=who.role, swarm_id=who.swarm_id),
            recipients=tuple(Recipient(agent_id=one) for one in recipients),
            trace=Trace(
                session_id="s-1",
                run_id="run-1",
                task_id=fields.pop("task", "task-1"),
                root_packet_id=identity.root if identity else packet_id,
                parent_packet_id=parent_id,
                generation=session.generation if generation is None and session else generation or 0,
                step=0,
            ),
            routing=Routing(delivery_mode=mode, **(ROUTING | fields.pop("routing", {}))),
            confidence=0.5,
            symbolic_keys=keys,
            payload=payload,
            **fields,
        )

    def send(
        self, agent: str, payload: Payload, to: str | Iterable[str] = ORCHESTRATOR, **fields: Any
    ) -> tuple[Packet, Verdict]:
        """Build, judge and take a packet; emissions are judged at once, as in the gate."""
        self.is_opening = fields.pop("is_opening", False)
        packet = self.build(agent, payload, to, **fields)
        return packet, self.take(packet)

    def take(self, packet: Packet) -> Verdict:
        """Judge a packet as the gate does."""
        received = read_packet(seal(packet).body)
        sender = packet.sender.agent_id
        facts = Facts(
            now=self.now,
            registry=self.registry,
            user_id=self.registry[sender].broker_user,
            packet_hash=received.packet_hash,
            payload_hash=received.payload_hash,
            is_cause_delivered=True,
            is_opening=self.is_opening,
        )
        verdict = admit(packet, self.opened, facts, self.contract)
        if verdict.kind in (VerdictKind.REPEAT, VerdictKind.RERUN):
            return verdict
        if self.opened is None:
            if verdict.kind is VerdictKind.REFUSED:
                return verdict
            self.opened = open_session(packet, self.now, self.contract)
        recipients = resolve_recipients(packet, self.session, self.registry)
        if verdict.kind is VerdictKind.ACCEPTED:
            self.packets.append(packet)
        given = PacketInput(received, verdict, recipients, None, self.now, self.decayed)
        self._apply(advance(self.session, given, self.contract))
        return verdict

    def acknowledge(self, *agents: str, kinds: tuple[ReceiptKind, ...] | None = None) -> None:
        """Handle everything that waits in these inboxes (all of them by default), until nothing waits."""
        while any(self.inboxes.get(agent) for agent in agents or tuple(self.inboxes)):
            for agent in agents or tuple(self.inboxes):
                while self.inboxes.get(agent):
                    packet, attempt = self.inboxes[agent].popleft()
                    self.receipts(packet, agent, attempt, kinds or HANDLED)

    def receipts(
        self,
        packet: Packet,
        agent: str,
        attempt: int = 1,
        kinds: tuple[ReceiptKind, ...] | None = None,
        *,
        after_ms: int | None = None,
        error: str | None = None,
    ) -> None:
        """Receipts of one delivery, together."""
        found = tuple(
            Receipt(
                packet_id=packet.packet_id,
                session_id="s-1",
                recipient=agent,
                kind=kind,
                attempt=attempt,
                at=self.now,
                after_ms=after_ms,
                error=error,
            )
            for kind in kinds or HANDLED
        )
        self._apply(advance(self.session, ReceiptsInput(found, self.now, self.decayed), self.contract))

    def confirm(self, packet: Packet) -> None:
        """The substrate stream has the packet."""
        self._apply(confirm_substrate(self.session, packet.packet_id, self.now, self.contract))

    def pass_time(self, **duration: float) -> None:
        """Move the clock, firing every timer that comes due on the way; then the delay queue gives back what it has."""
        end = self.now + timedelta(**duration)
        while (due := self.session.next_deadline) is not None and due <= end:
            self.now = max(self.now, due)
            deadlines = self.session.document.deadlines
            self.take(timer(self.session, min(deadlines, key=deadlines.__getitem__), self.now, self.contract))
        self.now = end
        waiting, self.put_off = self.put_off, []
        for packet, recipient, attempt in waiting:
            self.receipts(packet, recipient, attempt, (ReceiptKind.RETRY_DUE,))

    @property
    def session(self) -> Session:
        """The session. Raises AssertionError when nothing has opened it."""
        assert self.opened is not None, "no START has opened the session"
        return self.opened

    @property
    def events(self) -> list[str]:
        """The session's events so far."""
        return [transition.event for transition in self.transitions]

    def _apply(self, advanced: Any) -> None:
        effects = advanced.effects
        self.effects.append(effects)
        self.transitions += advanced.transitions
        for route in (*effects.routes, *effects.due):
            self._deliver(route)
        for denial in effects.denials:
            self.denied[denial.received.packet.packet_id] = denial.refusal.code
        for request in effects.verifications:
            self._verify(request.received.packet)
        for item in effects.resumed:
            self._release(item, is_last=item is effects.resumed[-1])
        for packet in advanced.emissions:
            verdict = self.take(packet)
            assert verdict.kind is VerdictKind.ACCEPTED, (packet, verdict.refusal)

    def _release(self, item: HeldPacket, *, is_last: bool) -> None:
        received = item.received
        facts = Facts(
            now=self.now, registry=self.registry, packet_hash=received.packet_hash, payload_hash=received.payload_hash
        )
        verdict = judge_held(received.packet, self.session, facts, self.contract)
        given = ReleaseInput(item, verdict, self.packets[-1].packet_id, self.now, is_last)
        self._apply(advance(self.session, given, self.contract))

    def _deliver(self, route: Route) -> None:
        for agent in route.recipients:
            if route.not_before is not None and route.not_before > self.now:
                self.put_off.append((route.received.packet, agent, route.attempt))
                continue
            if agent == SUBSTRATE_RECIPIENT:
                self.stream.append(route.received.packet)
                continue
            self.inboxes.setdefault(agent, deque()).append((route.received.packet, route.attempt))

    def _verify(self, packet: Packet) -> None:
        if self.verification:
            self.receipts(packet, ORCHESTRATOR, 1, self.verification)


HANDLED = (ReceiptKind.DELIVERY_ACK, ReceiptKind.CONSUMER_APPLY, ReceiptKind.OUTCOME)


@pytest.fixture
def simulation(contract: Contract) -> Simulation:
    return Simulation(contract)


Simulate = Callable[[], Simulation]


@pytest.fixture
def simulate(contract: Contract) -> Simulate:
    """For property tests: a new simulation for each example."""
    return lambda: Simulation(contract)

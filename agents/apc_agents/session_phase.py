"""What a worker knows of a session's phase: the newest of delivery headers and SYNC.

Source: docs/specification/contract.md section 10.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import SignalFields, SignalPayload
from apc_contracts.payloads.session_signals import SessionState, TaskSessionSpec
from apc_contracts.vocabulary import ORCHESTRATOR, RunPhase, Signal

MAX_SESSIONS = 10_000
"""Sessions remembered; the one that was silent longest is forgotten first and known again at its next delivery."""
MAX_ROOTS = 10_000


@dataclass(frozen=True, slots=True)
class SessionPosition:
    """Where a session stands; `step` orders the moments of a session."""

    step: int = 0
    run_phase: RunPhase = RunPhase.RESEARCH
    round: int = 0
    generation: int = 0
    contract: str = ""
    """The contract that the session's START named; empty = the deployment's default."""


@dataclass(slots=True)
class SessionKnowledge:
    """The newest moment of a session, its last SYNC and its vector clock."""

    moment: SessionPosition = field(default_factory=SessionPosition)
    sync: SessionState | None = None
    clock: dict[str, int] = field(default_factory=dict)


class KnownSessions:
    """Everything this worker has learned of its sessions; bounded, in memory, rebuilt from what is delivered."""

    def __init__(self, agent_id: str, max_sessions: int = MAX_SESSIONS) -> None:
        self._agent_id = agent_id
        self._max_sessions = max_sessions
        self._known: OrderedDict[str, SessionKnowledge] = OrderedDict()
        self._roots: OrderedDict[UUID, UUID] = OrderedDict()

    def of(self, session_id: str) -> SessionKnowledge:
        """Return what is known of a session; of an unknown one, its beginning."""
        known = self._known.get(session_id)
        if known is None:
            known = self._known[session_id] = SessionKnowledge()
            if len(self._known) > self._max_sessions:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(session_id)
        return known

    def learn(self, packet: Packet, moment: SessionPosition | None) -> SessionKnowledge:
        """Take over what a delivered packet tells; an older moment never replaces a newer one."""
        known = self.of(packet.trace.session_id)
        if moment is not None and moment.step >= known.moment.step:
            known.moment = moment
        payload = packet.payload
        if type(payload) is SignalPayload and payload.signal is Signal.SYNC:
            self._learn_sync(packet, payload, known)
        if packet.trace.vector_clock:
            _merge(known.clock, packet.trace.vector_clock)
        self.note_root(packet)
        return known

    def note_root(self, packet: Packet) -> None:
        """Remember the root of a packet, so that it can be named as a parent by its id alone."""
        self._roots[packet.packet_id] = packet.trace.root_packet_id
        if len(self._roots) > MAX_ROOTS:
            self._roots.popitem(last=False)

    def note_start(self, packet: Packet) -> None:
        """Take the phase and the contract of a session that this agent opens, until the orchestrator tells them."""
        payload = packet.payload
        if not isinstance(payload, SignalFields) or not isinstance(payload.session, TaskSessionSpec):
            return
        known = self.of(packet.trace.session_id)
        if known.moment.step == 0:
            known.moment = SessionPosition(run_phase=RunPhase.EXECUTION, contract=payload.session.contract)

    def root_of(self, packet_id: UUID) -> UUID | None:
        """Return the root of a packet that this worker has seen or emitted lately."""
        return self._roots.get(packet_id)

    def tick(self, session_id: str) -> dict[str, int]:
        """Add one to this agent's clock in the session; return a copy of the whole vector clock."""
        clock = self.of(session_id).clock
        clock[self._agent_id] = clock.get(self._agent_id, 0) + 1
        return dict(clock)

    def _learn_sync(self, packet: Packet, payload: SignalPayload, known: SessionKnowledge) -> None:
        state = payload.session
        if not isinstance(state, SessionState) or packet.sender.agent_id != ORCHESTRATOR:
            return
        if state.step >= known.moment.step:
            known.moment = SessionPosition(
                state.step, state.run_phase, state.round, state.generation, state.contract or ""
            )
        if known.sync is None or state.step >= known.sync.step:
            known.sync = state


def _merge(clock: dict[str, int], other: Mapping[str, int]) -> None:
    for agent_id, count in other.items():
        if count > clock.get(agent_id, -1):
            clock[agent_id] = count

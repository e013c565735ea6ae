"""One run of a handler: what the SDK keeps of it, and HandlerContext shows of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID, uuid5

from apc_agents.agent import Agent
from apc_agents.clearance import Trigger
from apc_agents.effects import EffectMaker
from apc_agents.emitting.draft import Draft
from apc_agents.emitting.emitter import Emitter
from apc_agents.errors import AgentError
from apc_agents.handling.coordination import NOT_FOLLOWED, LocalCoordination
from apc_agents.handling.snapshot import Snapshot
from apc_agents.handling.state_cache import StateDocument
from apc_agents.memory import BaseMemoryStore, Message, NewMessages
from apc_agents.phase import SessionKnowledge
from apc_agents.tasks import TaskStore
from apc_bus.artifacts.store import ArtifactStore
from apc_contracts.envelope.packet import Packet
from apc_contracts.identity.registry import Right
from apc_contracts.payloads.by_type import AckPayload, NackPayload, Payload
from apc_contracts.wire.receipts import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What all runs of the handlers of a worker share."""

    agent: Agent
    emitter: Emitter
    effects: EffectMaker
    memory: BaseMemoryStore
    artifacts: ArtifactStore | None = None
    tasks: TaskStore | None = None


class Invocation:
    """One run of a handler: its packet, its state, and what it has emitted and spent."""

    def __init__(
        self,
        resources: Resources,
        packet: Packet | None,
        document: StateDocument,
        knowledge: SessionKnowledge,
        coordination: LocalCoordination,
        sender_rights: frozenset[Right] = frozenset(),
    ) -> None:
        self.resources = resources
        self.document = document
        self.knowledge = knowledge
        self.coordination = coordination
        self.sender_rights = sender_rights
        self.not_handled: str | None = None
        """Why the packet was passed over; None when its handler ran."""
        self.has_answered = False
        """Whether the handler itself has emitted an ACK or NACK of its packet."""
        self.used_tokens = 0
        self.used_cost = 0.0
        self._packet = self._published = packet
        self._snapshot: Snapshot | None = None
        self._ordinal = 0
        self._origins = 0

    @property
    def agent_id(self) -> str:
        """The agent whose handler runs."""
        return self.resources.agent.agent_id

    @property
    def packet(self) -> Packet:
        """The handled packet. Raises AgentError in on_start, where there is none."""
        if self._packet is None:
            raise AgentError("on_start has no packet: give session_id, run_id, task_id and to yourself")
        return self._packet

    @property
    def published(self) -> Packet:
        """The handled packet as it was published. Raises AgentError in on_start."""
        if self._published is None:
            raise AgentError("on_start has no packet")
        return self._published

    def open(self, packet: Packet) -> Packet:
        """Take the handled packet with its long texts; return it."""
        self._packet = packet
        return packet

    @property
    def trigger(self) -> Trigger:
        """Who caused this invocation. Raises AgentError in on_start."""
        return Trigger.of(self.packet, self.sender_rights, self.resources.agent.clearance)

    @property
    def snapshot(self) -> Snapshot:
        """The context object of the packet. Raises AgentError in on_start."""
        if self._snapshot is None:
            is_paused = self.knowledge.sync is not None and self.knowledge.sync.paused
            self._snapshot = Snapshot(self.resources.agent, self.packet, self.resources.memory, is_paused=is_paused)
        return self._snapshot

    @property
    def usage(self) -> Usage | None:
        """What the handler has spent; None when it has reported nothing."""
        if not self.used_tokens and not self.used_cost:
            return None
        return Usage(tokens=self.used_tokens or None, cost=self.used_cost or None)

    def say(self, messages: Sequence[Message], user_id: str) -> None:
        """Add messages to the session's conversation when the state is saved."""
        session_id = self.packet.trace.session_id
        self.document.messages = NewMessages(session_id, user_id, self.agent_id, tuple(messages))

    def undo(self) -> None:
        """Forget what the handler changed, and end the invocation in LOCAL_HALT."""
        self.document.reset()
        self.coordination.halt()

    async def emit(self, draft: Draft) -> Packet:
        """Emit a packet of the handler. Raises as HandlerContext.emit."""
        payload, cause, ordinal = draft.payload, self._packet, self._next_ordinal()
        if isinstance(payload, AckPayload | NackPayload) and cause is not None:
            self.has_answered |= payload.acked_packet_id == cause.packet_id
        with self.coordination.emission() as emission:
            packet = await self.resources.emitter.emit(draft, cause, ordinal, emission)
        if self._snapshot is not None:
            await self._snapshot.follow(packet)
        return packet

    async def answer(self, payload: Payload) -> Packet:
        """Emit the SDK's own answer to the handled packet (ACK, NACK, ERROR). Raises as `emit`."""
        return await self.resources.emitter.emit(Draft(payload), self._packet, self._next_ordinal(), NOT_FOLLOWED)

    def new_origin(self) -> UUID:
        """Return an id that is the same when the handler runs again. Raises AgentError in on_start."""
        self._origins += 1
        return uuid5(self.packet.packet_id, f"{self.agent_id}/origin/{self._origins}")

    def _next_ordinal(self) -> int:
        # Taken before the first await: emits that run side by side keep their numbers when they run again.
        ordinal, self._ordinal = self._ordinal, self._ordinal + 1
        return ordinal

"""What a handler is given beside the packet."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

from pydantic import JsonValue

from apc_agents.clearance import Trigger
from apc_agents.emitting.emission import DEFAULT_PRIORITY, DEFAULT_TTL, Destination, Draft, Parent
from apc_agents.emitting.emitter import Emitter
from apc_agents.errors import AgentError, Retry
from apc_agents.handling.coordination import NOT_FOLLOWED, LocalCoordination, LocalTransition
from apc_agents.handling.state_cache import StateDocument
from apc_agents.memory import (
    BaseMemoryStore,
    InMemoryMemoryStore,
    MemoryUnavailable,
    Message,
    NewMessages,
    StaleRevision,
)
from apc_agents.phase import SessionKnowledge
from apc_bus.artifacts import ArtifactStore
from apc_contracts.agent.context import AgentContext
from apc_contracts.contract.contract import Contract
from apc_contracts.envelope.packet import Lineage, Packet, ProofBundle
from apc_contracts.identity.registry import Right
from apc_contracts.payloads.by_type import AckPayload, NackPayload, Payload
from apc_contracts.payloads.session_signals import SessionState
from apc_contracts.vocabulary import Channel, RunPhase

if TYPE_CHECKING:
    from apc_agents.agent import Agent
    from apc_agents.agent_context.assembler import ContextAssembler
    from apc_agents.effects import EffectMaker
    from apc_agents.tasks import TaskStore


MEMORY_AWAY_AFTER = timedelta(seconds=5)
"""When a packet is tried again whose conversation could not be read or written."""


class HandlerContext:
    """One invocation of a handler: where it stands, its state, and the way to emit packets."""

    def __init__(
        self,
        agent: "Agent",
        packet: Packet[Any] | None,
        document: StateDocument,
        knowledge: SessionKnowledge,
        emitter: Emitter,
        artifacts: ArtifactStore | None,
        coordination: LocalCoordination,
        effects: "EffectMaker",
        tasks: "TaskStore | None" = None,
        memory: BaseMemoryStore | None = None,
    ) -> None:
        self.agent = agent
        self._packet = self._published = packet
        self._document = document
        self._knowledge = knowledge
        self._emitter = emitter
        self._artifacts = artifacts
        self._coordination = coordination
        self._effects = effects
        self.tasks = tasks
        """The tasks of ASYNC actions; None when the agent has no tools."""
        self.memory = memory or InMemoryMemoryStore()
        """Conversations and agent states beyond ctx.state (docs/reference/memory.md)."""
        self._assembler: ContextAssembler | None = None
        self._snapshot: AgentContext | None = None
        self._is_recorded = False
        self.not_handled: str | None = None
        """Why the packet was passed over; None when its handler ran."""
        self.sender_rights: frozenset[Right] = frozenset()
        """The rights of the packet's sender, as the gate knows them."""
        self._ordinal = 0
        self._origins = 0
        self._has_answered = False
        self.used_tokens = 0
        self.used_cost = 0.0

    @property
    def packet(self) -> Packet[Any]:
        """The packet at hand. Raises AgentError in on_start, where there is none."""
        if self._packet is None:
            raise AgentError("on_start has no packet: give session_id, run_id, task_id and to yourself")
        return self._packet

    @property
    def published(self) -> Packet[Any]:
        """The packet at hand as it was published: where it was too large, with hashes in the place of long texts.

        An endorsement signs the payload_hash of this one. Raises AgentError in on_start.
        """
        if self._published is None:
            raise AgentError("on_start has no packet")
        return self._published

    def open(self, packet: Packet[Any]) -> Packet[Any]:
        """The SDK gives the packet at hand its long texts back."""
        self._packet = packet
        return packet

    @property
    def trigger(self) -> Trigger:
        """Who caused this invocation, and how far the agent's clearance lets it go. Raises AgentError in on_start."""
        return Trigger.of(self.packet, self.sender_rights, self.agent.clearance)

    @property
    def session_id(self) -> str:
        """The packet's session."""
        return self.packet.trace.session_id

    @property
    def run_id(self) -> str:
        """The packet's run."""
        return self.packet.trace.run_id

    @property
    def task_id(self) -> str:
        """The packet's task."""
        return self.packet.trace.task_id

    @property
    def run_phase(self) -> RunPhase:
        """The session's phase, as the newest delivery or SYNC told; it may change while the handler runs."""
        return self._knowledge.moment.run_phase

    @property
    def round(self) -> int:
        """The session's round, as run_phase."""
        return self._knowledge.moment.round

    @property
    def generation(self) -> int:
        """The session's generation, as run_phase."""
        return self._knowledge.moment.generation

    @property
    def step(self) -> int:
        """The session's step, as run_phase."""
        return self._knowledge.moment.step

    @property
    def session_state(self) -> SessionState | None:
        """What the last SYNC of the session said (scores, subjects, paused); None before the first one."""
        return self._knowledge.sync

    @property
    def state(self) -> dict[str, Any]:
        """The agent's JSON document in this session; saved before the outcome is reported, if it has changed.

        What a handler changed before it failed, or raised Retry or Reject, is forgotten. In on_start it is
        the agent's own document, beside those of its sessions.
        """
        return self._document.value

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        self._document.value = value

    def say(self, messages: Sequence[Message], user_id: str) -> None:
        """Add messages to the session's conversation in ctx.memory, in the transaction that saves `state`.

        Args:
            messages: what was said; the next call replaces it.
            user_id: whose conversation it is, if nobody began it yet.
        """
        self._document.messages = NewMessages(self.session_id, user_id, self.agent.agent_id, tuple(messages))

    @property
    def contract(self) -> Contract:
        """The contract that the worker judges its own packets by."""
        return self._emitter.contract

    @property
    def artifacts(self) -> ArtifactStore:
        """The artifact store. Raises AgentError when the worker was given none."""
        if self._artifacts is None:
            raise AgentError("this worker has no artifact store: give Worker(..., artifacts=ArtifactStore(...))")
        return self._artifacts

    async def once(
        self,
        key: str,
        fn: Callable[[], Awaitable[Any] | Any],
        *,
        not_made: tuple[type[Exception], ...] = (),
    ) -> JsonValue:
        """Make an effect on the world outside, unless it was made for this packet already; returns what it gave.

        The effect is claimed before `fn` runs and recorded after it. When the packet is handled again (redelivered,
        retried, requeued), the recorded result is returned and `fn` does not run. docs/how-to/effects.md says it all.

        Args:
            key: names the effect among those of this handler and packet; 1 to 200 characters.
            fn: makes it. What it returns must be JSON, and is returned as JSON (a tuple comes as a list). One that is
                not `async` runs in a thread.
            not_made: exceptions of `fn` which prove that nothing has happened; it may then run again. EffectNotMade,
                Retry and Reject always do. After any other exception the effect is unknown.

        Raises:
            EffectUnknown: it was begun before, and how that ended was not recorded.
            EffectResultLost: it was made, and its result is not JSON, or larger than 256 KiB.
            Exception: what `fn` raised.
        """
        return await self._effects.once(self.packet, key, fn, not_made)

    async def settle(self, key: str, result: Any) -> JsonValue:
        """Say that an unknown effect of this packet has happened, and what it gave; returns that as JSON.

        Raises:
            EffectSettled: it is not unknown.
            ValueUnserialisable: the result is not JSON.
        """
        return await self._effects.settle(self.packet, key, result)

    async def release(self, key: str) -> None:
        """Say that an unknown effect of this packet has not happened: `once` makes it now. Raises EffectSettled."""
        await self._effects.release(self.packet, key)

    def idempotency_key(self, key: str) -> UUID:
        """The same id whenever this packet is handled: for services that know such keys, or can be asked by them."""
        return uuid5(self.packet.packet_id, str(self._effects.effect_id(self.packet, key)))

    @property
    def has_answered(self) -> bool:
        """Whether the handler itself has emitted an ACK or NACK of its packet."""
        return self._has_answered

    @property
    def local_state(self) -> str:
        """The state of this invocation in the machine `intra_agent_coordination`."""
        return self._coordination.state

    @property
    def local_transitions(self) -> tuple[LocalTransition, ...]:
        """The steps of this invocation so far; empty while the handler has emitted nothing."""
        return tuple(self._coordination.transitions)

    async def snapshot(self) -> AgentContext:
        """The context object of this invocation; made when it is first asked for, and the same from then on.

        The packet, and what the handler emits afterwards, then belong to the session's conversation in ctx.memory.

        Raises:
            Reject: `metadata.agent_context` of the packet does not fit the protocol.
            Retry: the memory store does not answer.
        """
        snapshot = await self.preview()
        if not self._is_recorded and self._assembler is not None:
            with _retried():
                await self._assembler.record(self.packet, self.agent.agent_id)
            self._is_recorded = True
        return snapshot

    async def preview(self) -> AgentContext:
        """Return the context object without taking the packet into the conversation. Raises as `snapshot`."""
        if self._snapshot is None:
            from apc_agents.agent_context.assembler import ContextAssembler  # late: it imports the engineered context

            packet, assembler = self.packet, ContextAssembler(self.memory)
            is_paused = self.session_state is not None and self.session_state.paused
            with _retried():
                self._snapshot = await assembler.assemble(
                    packet,
                    self.agent.agent_id,
                    focus=self.agent.actor.capabilities or (),
                    anomalies=("session_paused",) if is_paused else (),
                )
            self._assembler = assembler
        return self._snapshot

    async def pass_over(self) -> None:
        """Leave the packet out of what this agent is told later. Raises Retry."""
        if self._assembler is not None:
            with _retried():
                await self._assembler.pass_over(self.packet, self.agent.agent_id)

    def critique_fail(self, reason: str) -> None:
        """Say that the handler has dropped an idea by its own critique, before emitting it; goes on with the next.

        Raises:
            AgentError: while a packet is being emitted.
        """
        self._coordination.critique_fail(reason)

    def local_checks_fail(self, reason: str) -> None:
        """Say that what the handler has built failed its own checks, before emitting it. Raises as critique_fail."""
        self._coordination.local_checks_fail(reason)

    def halt(self) -> None:
        """The invocation has failed or was cancelled; the SDK says so when it undoes it."""
        self._coordination.halt()

    def add_usage(self, *, tokens: int = 0, cost: float = 0.0) -> None:
        """Report what the handler has spent; the outcome takes it into the session's budget."""
        self.used_tokens += tokens
        self.used_cost += cost

    async def emit(
        self,
        payload: Payload,
        *,
        to: Destination | None = None,
        parent: Parent = None,
        confidence: float = 1.0,
        symbolic_keys: Sequence[str] = (),
        capability_tags: Sequence[str] | None = None,
        lineage: Lineage | None = None,
        proof_bundle: ProofBundle | None = None,
        priority: int = DEFAULT_PRIORITY,
        ttl: timedelta = DEFAULT_TTL,
        requires_ack: bool = False,
        ack_timeout: timedelta | None = None,
        retry_limit: int | None = None,
        run_phase: RunPhase | None = None,
        generation: int | None = None,
        session_id: str | None = None,
        run_id: str | None = None,
        task_id: str | None = None,
        packet_id: UUID | None = None,
        channel: Channel = Channel.INTER_AGENT,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Packet[Any]:
        """Emit a packet; returns it when the broker has confirmed it.

        Long texts of one that would be larger than 256 KiB travel through the artifact store
        (docs/how-to/artifacts.md).

        Args:
            payload: one of the 14 payload classes; it decides the packet type.
            to: an agent_id, a Recipient, several of them, ALL or SUBSTRATE; default the sender of the packet at hand.
            parent: the packet (or its id) that this one follows from; default the packet at hand; ROOT = none.
            confidence: 0..1.
            priority: 0..9; from 5 on the recipient takes it from its urgent queue.
            ttl: 1 ms to 24 h.
            requires_ack: wait for the ACK of every recipient, of a BROADCAST for the first.
            ack_timeout: how long before the gate routes it again, or gives up; default the worker's.
            retry_limit: 0..10, how often the gate routes it again: when an ACK is missing, or a handler asks for a
                retry. Default the contract's.
            run_phase, generation: default the newest that is known of the session.
            session_id, run_id, task_id: default those of the packet at hand. With another session the packet is
                a root there, and a handler that runs again after a crash makes a new one, unless packet_id is given.
            packet_id: default derived from the packet at hand and the count of emits: give one only for a packet
                that nothing caused and that a restart shall repeat.

        Raises:
            EmitRefused: the contract refuses it; `code`, `path` and `message` say why.
            EmitUnconfirmed: the broker did not confirm in time.
            EmitRejected, EmitTimeout: with requires_ack, a NACK or no answer.
            Retry: long texts cannot be stored, because the artifact store is away.
        """
        draft = Draft(
            payload=payload,
            to=to,
            parent=parent,
            confidence=confidence,
            symbolic_keys=symbolic_keys,
            capability_tags=capability_tags,
            lineage=lineage,
            proof_bundle=proof_bundle,
            priority=priority,
            ttl=ttl,
            requires_ack=requires_ack,
            ack_timeout=ack_timeout,
            retry_limit=retry_limit,
            run_phase=run_phase,
            generation=generation,
            session_id=session_id,
            run_id=run_id,
            task_id=task_id,
            packet_id=packet_id,
            channel=channel,
            metadata=metadata,
        )
        return await self._emit(draft)

    async def _emit(self, draft: Draft) -> Packet[Any]:
        payload, cause, ordinal = draft.payload, self._packet, self._next_ordinal()
        if isinstance(payload, AckPayload | NackPayload) and cause is not None:
            self._has_answered |= payload.acked_packet_id == cause.packet_id
        with self._coordination.emission() as emission:
            packet = await self._emitter.emit(draft, cause, ordinal, emission)
        is_told = self._is_recorded and packet.trace.session_id == self.packet.trace.session_id
        if is_told and self._assembler is not None:
            with _retried():
                await self._assembler.record(packet, self.agent.agent_id)
        return packet

    async def answer(self, payload: Payload) -> Packet[Any]:
        """Emit the SDK's own answer to the packet at hand (ACK, NACK, ERROR). Raises as `emit`."""
        return await self._emitter.emit(Draft(payload=payload), self._packet, self._next_ordinal(), NOT_FOLLOWED)

    def new_origin(self) -> UUID:
        """An id that this invocation makes again, in the same order, when it runs again after a crash.

        Raises AgentError in on_start.
        """
        self._origins += 1
        return uuid5(self.packet.packet_id, f"{self.agent.agent_id}/origin/{self._origins}")

    def _next_ordinal(self) -> int:
        # Taken before the first await: emits that run side by side keep their numbers when they run again.
        ordinal, self._ordinal = self._ordinal, self._ordinal + 1
        return ordinal


@contextmanager
def _retried() -> Iterator[None]:
    """A memory that is away, or that everybody writes to, is worth another attempt of the packet."""
    try:
        yield
    except (MemoryUnavailable, StaleRevision) as error:
        raise Retry(MEMORY_AWAY_AFTER, str(error)) from error

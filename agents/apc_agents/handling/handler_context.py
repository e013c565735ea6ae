"""What a handler is given beside the packet."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Unpack, overload
from uuid import UUID, uuid5

from pydantic import BaseModel, JsonValue

from apc_agents.agent import Agent
from apc_agents.clearance import Trigger
from apc_agents.emitting.draft import Draft, EmitOptions
from apc_agents.errors import AgentError
from apc_agents.handling.coordination import LocalTransition
from apc_agents.handling.waiting_calls import WaitingCalls
from apc_agents.memory import BaseMemoryStore, ConversationMessage
from apc_agents.tasks import TaskStore
from apc_agents.typed.message import done_with
from apc_bus.artifacts import ArtifactStore
from apc_contracts.agent import AgentContext
from apc_contracts.contract.contract import Contract
from apc_contracts.packet import Packet, Recipient, SomePayload
from apc_contracts.payloads.by_type import DecisionPayload, MessagePayload, Payload
from apc_contracts.vocabulary import ORCHESTRATOR


class HandlerContext(WaitingCalls):
    """The handler's view of its invocation: the session, the agent's state, and the way to emit packets."""

    @property
    def agent(self) -> Agent:
        """The agent whose handler this is."""
        return self._invocation.resources.agent

    @property
    def published(self) -> Packet:
        """The handled packet as it was published: where it was too large, with hashes in the place of long texts.

        An endorsement signs the payload_hash of this one. Raises AgentError in on_start.
        """
        return self._invocation.published

    @property
    def trigger(self) -> Trigger:
        """Who caused this invocation, and how far the agent's clearance lets it go. Raises AgentError in on_start."""
        return self._invocation.trigger

    @property
    def state(self) -> dict[str, Any]:
        """The agent's JSON document in this session; saved before the outcome is reported, if it has changed.

        What a handler changed before it failed, or raised Retry or Reject, is forgotten. In on_start it is
        the agent's own document, beside those of its sessions.
        """
        document = self._invocation.document
        document.use()
        return document.value

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        document = self._invocation.document
        document.use()
        document.value = value

    @property
    def memory(self) -> BaseMemoryStore:
        """Conversations and agent states beyond ctx.state (docs/reference/memory.md)."""
        return self._invocation.resources.memory

    @property
    def tasks(self) -> TaskStore | None:
        """The tasks of ASYNC actions; None when the agent has no tools."""
        return self._invocation.resources.tasks

    @property
    def contract(self) -> Contract:
        """The contract that the worker judges its own packets by."""
        return self._invocation.resources.emitter.contract

    @property
    def artifacts(self) -> ArtifactStore:
        """The artifact store. Raises AgentError when the worker was given none."""
        store = self._invocation.resources.artifacts
        if store is None:
            raise AgentError("this worker has no artifact store: give Worker(..., artifacts=ArtifactStore(...))")
        return store

    @property
    def local_state(self) -> str:
        """The state of this invocation in the machine `intra_agent_coordination`."""
        return self._invocation.coordination.state

    @property
    def local_transitions(self) -> tuple[LocalTransition, ...]:
        """The steps of this invocation so far; empty while the handler has emitted nothing."""
        return tuple(self._invocation.coordination.transitions)

    @overload
    async def emit(  # type: ignore[overload-overlap]
        self, payload: SomePayload, **options: Unpack[EmitOptions]
    ) -> Packet[SomePayload]: ...

    @overload
    async def emit(self, payload: BaseModel, **options: Unpack[EmitOptions]) -> Packet[MessagePayload]: ...

    async def emit(self, payload: BaseModel, **options: Unpack[EmitOptions]) -> Packet[Any]:
        """Emit a packet; returns it when the broker has confirmed it.

        Long texts of one that would be larger than 256 KiB travel through the artifact store
        (docs/how-to/artifacts.md).

        Args:
            payload: one of the payload classes; it decides the packet type. Or a model with `@message`: a MESSAGE.
            options: see EmitOptions; what is left out has its default.

        Raises:
            EmitRefused: the contract refuses it; `code`, `path` and `message` say why.
            EmitUnconfirmed: the broker did not confirm in time.
            EmitRejected, EmitTimeout: with requires_ack, a NACK or no answer.
            Retry: long texts cannot be stored, because the artifact store is away.
        """
        return await self._invocation.emit(Draft(payload, **options))

    async def complete(
        self, result: BaseModel | None = None, *, recommendation: str = "done", **options: Unpack[EmitOptions]
    ) -> Packet[DecisionPayload]:
        """End the work of a `task` session: emit a DECISION DONE to the orchestrator, with the result.

        Reviewers, if the session has some, must then approve it. Only a decider may do this.

        Args:
            result: a model with `@message`; what a client gets as the session's result.
            recommendation: the same in words.
            options: those of `emit`; `to` adds recipients beside the orchestrator and the reviewers.

        Raises:
            AgentError: the result is no decorated model.
            EmitRefused, EmitUnconfirmed: as `emit`.
        """
        given = options.pop("to", None) or ()
        others = (given,) if isinstance(given, str | Recipient) else tuple(given)
        reviewers = self.session_state.reviewers if self.session_state is not None else None
        options["to"] = (ORCHESTRATOR, *(reviewers or ()), *others)
        return await self.emit(done_with(result, f"done-{self.packet.packet_id}", recommendation), **options)

    async def answer(self, payload: Payload) -> Packet:
        """Emit an answer to the handled packet (ACK, NACK, ERROR) beside the local machine. Raises as `emit`."""
        return await self._invocation.answer(payload)

    def say(self, messages: Sequence[ConversationMessage], user_id: str) -> None:
        """Add messages to the session's conversation in ctx.memory, in the transaction that saves `state`.

        Args:
            messages: what was said; the next call replaces it.
            user_id: whose conversation it is, if nobody began it yet.
        """
        said = f"{len(messages)} messages for {user_id}"
        self._invocation.journal.note("say", lambda: said, lambda: self._invocation.say(messages, user_id))

    async def snapshot(self) -> AgentContext:
        """Return the context object of this invocation; made at the first call, and the same from then on.

        The packet, and what the handler emits afterwards, then belong to the session's conversation in ctx.memory.

        Raises:
            Reject: `metadata.agent_context` of the packet does not fit the protocol.
            Retry: the memory store does not answer.
        """
        return await self._invocation.journal.call("snapshot", str, self._invocation.snapshot.take)

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
        effects, packet = self._invocation.resources.effects, self.packet
        return await self._invocation.journal.call("once", lambda: key, lambda: effects.once(packet, key, fn, not_made))

    async def settle(self, key: str, result: Any) -> JsonValue:
        """Record that an unknown effect of this packet has happened, with its result; return the result as JSON.

        Raises:
            EffectSettled: it is not unknown.
            ValueUnserialisable: the result is not JSON.
        """
        effects, packet = self._invocation.resources.effects, self.packet
        return await self._invocation.journal.call("settle", lambda: key, lambda: effects.settle(packet, key, result))

    async def release(self, key: str) -> None:
        """Record that an unknown effect of this packet has not happened: `once` makes it now. Raises EffectSettled."""
        effects, packet = self._invocation.resources.effects, self.packet
        await self._invocation.journal.call("release", lambda: key, lambda: effects.release(packet, key))

    def idempotency_key(self, key: str) -> UUID:
        """Return the same id whenever this packet is handled: for services that take such keys, or can look them up."""
        effect_id = self._invocation.resources.effects.effect_id(self.packet, key)
        return uuid5(self.packet.packet_id, str(effect_id))

    def new_origin(self) -> UUID:
        """Return an id that this invocation makes again, in the same order, when it runs again after a crash.

        Raises AgentError in on_start.
        """
        return self._invocation.new_origin()

    def critique_fail(self, reason: str) -> None:
        """Record that the handler dropped an idea by its own critique before emitting it, and continues with the next.

        Raises:
            AgentError: while a packet is being emitted.
        """
        coordination = self._invocation.coordination
        self._invocation.journal.note("critique_fail", lambda: reason, lambda: coordination.critique_fail(reason))

    def local_checks_fail(self, reason: str) -> None:
        """Record that the handler's artifact failed its own checks before it was emitted. Raises as critique_fail."""
        coordination = self._invocation.coordination
        self._invocation.journal.note(
            "local_checks_fail", lambda: reason, lambda: coordination.local_checks_fail(reason)
        )

    def note_provenance(self, metadata: Mapping[str, JsonValue]) -> None:
        """Give the packets of what the handler returns these metadata, the answer of a request among them."""
        self._invocation.result_metadata = metadata

    def add_usage(self, *, tokens: int = 0, cost: float = 0.0) -> None:
        """Report what the handler has spent; the outcome takes it into the session's budget."""
        self._invocation.used_tokens += tokens
        self._invocation.used_cost += cost

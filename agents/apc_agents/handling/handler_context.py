"""One run of a handler: what the handler reads and calls, and how its packets leave."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, overload
from uuid import UUID, uuid5

from pydantic import BaseModel, JsonValue

from apc_agents.agent import Agent, Resources
from apc_agents.clearance import Trigger
from apc_agents.effect_maker import UNLOGGED, EffectLog, is_making_effect
from apc_agents.effects import EffectError, Scope
from apc_agents.emission import (
    UNFOLLOWED,
    Built,
    Destination,
    Draft,
    EmitOptions,
    HeldPacket,
    LocalCoordination,
    LocalTransition,
    begin_citing,
    built_by,
    citation_of,
    cite,
)
from apc_agents.errors import AgentError
from apc_agents.handling.inquiry import (
    AgentAsked,
    Approval,
    Inquiry,
    ModelT,
    Pending,
    PeopleAsked,
    drafts_of,
    evidence_of,
    outcomes_of,
    shown_of,
    subject_of,
    wake_draft,
)
from apc_agents.handling.journal import Asked, CallJournal
from apc_agents.ports import BaseMemoryStore, ConversationMessage, NewMessages, Snapshot
from apc_agents.running.delivery import SessionKnowledge
from apc_agents.typed import done_with
from apc_bus.telemetry import get_logger
from apc_contracts.agent import AgentContext
from apc_contracts.packet import Packet, Recipient, SomePayload
from apc_contracts.payloads.by_type import AckPayload, MessagePayload, NackPayload, OnTimeout, Payload
from apc_contracts.payloads.session_signals import SessionState
from apc_contracts.vocabulary import ORCHESTRATOR, Right, RunPhase
from apc_contracts.wire.receipts import Usage

if TYPE_CHECKING:
    from apc_agents.handling.state import StateDocument
    from apc_agents.task_port import TaskStore
    from apc_bus.artifacts import ArtifactStore
    from apc_contracts.contract.contract import Contract

MAX_HELD_BYTES = 4 * 1024 * 1024
"""Of the packets that wait for the state to be saved. Beyond it they leave before: the document would be too large."""
REQUEST_TIMEOUT: Final = timedelta(minutes=1)

ResultT = TypeVar("ResultT")

_log = get_logger("apc_agents")


class HandlerContext:
    """The handler's view of its invocation: the session, the agent's state, and the way to emit packets.

    ```python
    @desk.on(Question)
    async def reply(question: Question, ctx: HandlerContext) -> None:
        ctx.state["asked"] = ctx.state.get("asked", 0) + 1
        ctx.cite(ctx.packet)
        receipt = await ctx.once("mail", lambda: {"id": "m-1"})
        ctx.add_usage(tokens=120, cost=0.002)
        await ctx.emit(Answer(text=receipt["id"]))


    async with AgentTestClient(desk) as client:
        packet = await client.send(Question(text="why"))
        assert packet.proof_bundle.evidence_refs == (f"packet:{packet.trace.parent_packet_id}",)
        assert await client.state() == {"asked": 1}
    ```

    The SDK makes it, and hands it to the handler.

    Args:
        resources: what the runs of a worker's handlers share.
        packet: the handled packet; None in on_start.
        document: the agent's state in the session.
        knowledge: what the worker knows of the session.
        coordination: the machine of this run.
        rights: of the packet's sender.
        journal: the calls of earlier runs of the same handler; none by default.
    """

    def __init__(
        self,
        resources: Resources,
        packet: Packet | None,
        document: "StateDocument",
        knowledge: SessionKnowledge,
        coordination: LocalCoordination,
        rights: frozenset[Right] = frozenset(),
        journal: CallJournal | None = None,
    ) -> None:
        self.resources = resources
        self.effect_log: EffectLog = UNLOGGED
        self.document = document
        self.knowledge = knowledge
        self.coordination = coordination
        self.rights = rights
        """Of the packet's sender."""
        self.journal = journal or CallJournal()
        """The handler's calls."""
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        self.reported = (0, 0.0)
        """Tokens and cost that an earlier run of the same handler has reported."""
        self.not_handled: str | None = None
        """Why the packet was passed over; None when its handler ran."""
        self.has_answered = False
        """Whether the handler itself has emitted an ACK or NACK of its packet."""
        self.is_acknowledged = False
        """Whether the SDK has sent the required ACK at the first wait."""
        self.result_metadata: Mapping[str, JsonValue] | None = None
        """What the packets say beside the payloads that the handler returns."""
        self.is_ended = False
        """Whether the handler has ended: what its tasks still emit leaves at once."""
        self.ack_ordinal = 0
        """Of the ACK that the SDK sends if the handler waits now for the first time."""
        self.began = monotonic()
        """When this run began, in seconds."""
        self.used_tokens = 0
        self.used_cost = 0.0
        self.tool_failures: dict[str, EffectError] = {}
        """Effects of tools that need somebody's word, by their keys: a framework may have hidden their errors."""
        self._emitted: dict[UUID, Built] = {}
        """What this run has emitted."""
        self._packet = self._published = packet
        self._snapshot: Snapshot | None = None
        self._held_bytes = 0
        begin_citing()

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
        """The handled packet as it was published: where it was too large, with hashes in the place of long texts.

        An endorsement signs the payload_hash of this one. Raises AgentError in on_start.
        """
        if self._published is None:
            raise AgentError("on_start has no packet")
        return self._published

    @property
    def agent(self) -> Agent:
        """The agent whose handler this is."""
        return self.resources.agent

    @property
    def trigger(self) -> Trigger:
        """Who caused this invocation, and how far the agent's clearance lets it go. Raises AgentError in on_start."""
        return Trigger.of(self.packet, self.rights, self.agent.clearance)

    @property
    def state(self) -> dict[str, Any]:
        """The agent's JSON document in this session; saved before the outcome is reported, if it has changed.

        What a handler changed before it failed, or raised Retry or Reject, is forgotten, with what it has emitted after
        the change. What JSON cannot hold (NaN, sets, U+0000) raises StateInvalid at the next emission, wait or effect.
        In on_start it is the agent's own document, beside those of its sessions, and nothing is held.
        """
        document = self.document
        document.use()
        return document.value

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        document = self.document
        document.use()
        document.value = value

    @property
    def memory(self) -> BaseMemoryStore:
        """Conversations and agent states beyond ctx.state (docs/reference/memory.md). Raises AgentError."""
        return self.resources.memory

    @property
    def tasks(self) -> "TaskStore | None":
        """The tasks of ASYNC actions; None when the agent has no tools."""
        return self.resources.tasks

    @property
    def contract(self) -> "Contract":
        """The contract that the worker judges its own packets by."""
        return self.resources.emitter.contract

    @property
    def artifacts(self) -> "ArtifactStore":
        """The artifact store. Raises AgentError when the worker was given none."""
        store = self.resources.artifacts
        if store is None:
            raise AgentError("this worker has no artifact store: give Worker(..., artifacts=ArtifactStore(...))")
        return store

    @property
    def local_state(self) -> str:
        """The state of this invocation in the machine `intra_agent_coordination`."""
        return self.coordination.state

    @property
    def local_transitions(self) -> tuple[LocalTransition, ...]:
        """The steps of this invocation so far; empty while the handler has emitted nothing."""
        return tuple(self.coordination.transitions)

    @property
    def sender_rights(self) -> frozenset[Right]:
        """The rights of the packet's sender, as the orchestrator knows them."""
        return self.journal.note("sender_rights", str, lambda: self.rights)

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
        return self.journal.note("run_phase", str, lambda: self.knowledge.moment.run_phase)

    @property
    def round(self) -> int:
        """The session's round, as run_phase."""
        return self.journal.note("round", str, lambda: self.knowledge.moment.round)

    @property
    def generation(self) -> int:
        """The session's generation, as run_phase."""
        return self.journal.note("generation", str, lambda: self.knowledge.moment.generation)

    @property
    def step(self) -> int:
        """The session's step, as run_phase."""
        return self.journal.note("step", str, lambda: self.knowledge.moment.step)

    @property
    def session_state(self) -> SessionState | None:
        """What the last SYNC of the session said (scores, subjects, paused); None before the first one."""
        return self.journal.note("session_state", str, lambda: self.knowledge.sync)

    @overload
    async def emit(  # type: ignore[overload-overlap]
        self, payload: SomePayload, **options: Unpack[EmitOptions]
    ) -> Packet[SomePayload]: ...

    @overload
    async def emit(self, payload: BaseModel, **options: Unpack[EmitOptions]) -> Packet[MessagePayload]: ...

    async def emit(self, payload: BaseModel, **options: Unpack[EmitOptions]) -> Packet[Any]:
        """Emit a packet; returns it when the broker has confirmed it.

        While `state` has changes that are not saved, the packet is held: it leaves after the save, when the handler
        ends or waits, and a handler that fails has not emitted it. With requires_ack it leaves at once, and so does
        what is held by then.

        Long texts of one that would be larger than 256 KiB travel through the artifact store
        (docs/how-to/artifacts.md).

        Args:
            payload: one of the payload classes; it decides the packet type. Or a model with `@message`: a MESSAGE.
            options: see EmitOptions; what is left out has its default.

        Raises:
            EmitRefused: the contract refuses it; `code`, `path` and `message` say why.
            EmitUnconfirmed: the broker did not confirm in time.
            EmitRejected, EmitTimeout: with requires_ack, a NACK or no answer.
            StateInvalid: `state` holds what cannot be saved; nothing is sent.
            Retry: long texts cannot be stored, because the artifact store is away.
        """
        draft = Draft(payload, **options).with_cited(self._packet)
        ordinal = self.journal.ordinal_of(draft.said)
        self.has_answered |= self._is_answer(draft.payload)
        packet = await self.journal.call("emit", draft.said, partial(self._send, draft, ordinal))
        self._emitted[packet.packet_id] = built_by(packet, self._packet, ordinal)
        return packet

    async def complete(
        self, result: BaseModel | None = None, *, recommendation: str = "done", **options: Unpack[EmitOptions]
    ) -> None:
        """End the work of a `task` session: emit a DECISION DONE to the orchestrator, with the result.

        Reviewers, if the session has some, must then approve it. Only a decider may do this. It returns nothing, so
        that a handler may end with `return await ctx.complete(result)`.

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
        await self.emit(done_with(result, f"done-{self.packet.packet_id}", recommendation), **options)

    def cite(self, *packets: Packet | UUID | str) -> tuple[str, ...]:
        """Name packets as evidence in what the handler emits, asks and returns from now on; return the references.

        They stand in `proof_bundle.evidence_refs` as `packet:<id>`, each once, after those of the emission's own
        bundle. ACK, NACK, ERROR, RETRACTION, signals other than questions, and packets into another session have none
        of them. A task that the handler has started cites for itself and the tasks that it starts.

        Args:
            packets: packets, or their ids, as a handler of this agent has kept them in `ctx.state`.

        Raises:
            AgentError: one is no packet and no id.
        """
        references = tuple(map(citation_of, packets))
        cite(references)
        return references

    async def answer(self, payload: Payload) -> Packet:
        """Emit an answer to the handled packet beside the local machine. Raises as `emit`.

        Args:
            payload: an AckPayload, NackPayload or ErrorPayload.
        """
        draft = Draft(payload)
        send = partial(self._send, draft, self.journal.ordinal_of(draft.said), is_followed=False)
        return await (send() if self.journal.is_over else self.journal.call("answer", draft.said, send))

    @overload
    def ask(
        self,
        question: str,
        *,
        to: Destination,
        timeout: timedelta,
        on_timeout: str = "deny",
        content: dict[str, JsonValue] | None = None,
        about: BaseModel | None = None,
        approvals: int = 1,
        returns: type[ModelT],
    ) -> Pending[Approval[ModelT]]: ...

    @overload
    def ask(
        self,
        question: str,
        *,
        to: Destination,
        timeout: timedelta,
        on_timeout: str = "deny",
        content: dict[str, JsonValue] | None = None,
        about: BaseModel | None = None,
        approvals: int = 1,
        returns: None = None,
    ) -> Pending[Approval]: ...

    def ask(
        self,
        question: str,
        *,
        to: Destination,
        timeout: timedelta,
        on_timeout: str = "deny",
        content: dict[str, JsonValue] | None = None,
        about: BaseModel | None = None,
        approvals: int = 1,
        returns: type[BaseModel] | None = None,
    ) -> Pending[Any]:
        """Ask people, and wait for the first answer: for days, and over restarts (docs/how-to/approvals.md).

        The handler ends at `await ctx.ask(...)`. With the answer it runs again from its first line, over the same
        packet: what it did through `ctx` so far returns what is recorded, without any effect, and `ctx.state` is as it
        was then. What it emits afterwards names the answer as evidence.

        Args:
            question: what they read; up to 8,192 characters.
            to: people by their ids, or everybody with a role: `Role("release-manager")`.
            timeout: how long to wait, within the session's deadline.
            on_timeout: `deny` returns a denial when nobody has answered in time, `raise` raises AskTimeout.
            content: data to be shown with the question.
            about: what the handler will emit if it is approved: a model with `@message`, a MessagePayload, or a
                DecisionPayload with a result. Its schema and content are shown with the question.
            approvals: how many different people must approve, one question each; up to 16. The first other answer ends
                the wait.
            returns: a pydantic model, whose fields people fill in to approve: `approval.answer` is one.

        Raises:
            AskTimeout: with on_timeout="raise".
            AnswerUnusable: a validator of `returns` refuses what fits its JSON Schema.
            EmitRefused: the gate refuses the question: nobody has the role, or the session ends before the timeout.
            AgentError: the handler cannot wait here, or the question is none: `content` beside `about`, say.
        """
        if about is not None:
            if content is not None:
                raise AgentError("ctx.ask has content= and about=: give one, for about= is shown as the content")
            content = shown_of(about)
        asked = PeopleAsked(question, to, timeout, OnTimeout(on_timeout), content, approvals, returns)
        return Pending(asked, self._wait_for)

    def request(
        self, content: BaseModel, *, to: Destination, returns: type[ModelT], timeout: timedelta = REQUEST_TIMEOUT
    ) -> Pending[ModelT]:
        """Ask another agent, and wait for its answer, as `ask` does.

        Its handler of the content's model runs; the first result of type `returns` is the answer.

        Args:
            content: a model with `@message`.
            to: an agent, several, or `Role("x")` for the members with a role; the first answer counts.
            returns: a model with `@message`.
            timeout: how long to wait, within the session's deadline; default a minute.

        Raises:
            AskTimeout: nobody has answered in time.
            RequestFailed: the agent refused the request, failed, or returned no such result.
            EmitRefused, AgentError: as `ask`.
        """
        return Pending(AgentAsked(content, to, returns, timeout), self._wait_for)

    async def gather(self, *waits: Pending[Any]) -> tuple[Any, ...]:
        """Ask several at once: `a, b = await ctx.gather(ctx.ask(...), ctx.request(...))`.

        The handler goes on when the last of them has ended. It is one wait of the 64.

        Raises:
            AskTimeout, RequestFailed, EmitRefused: the first that failed, in the order given.
            AgentError: the handler cannot wait here, or this is nothing to wait for.
        """
        inquiries = [one.take() for one in waits if isinstance(one, Pending)]
        for one in waits:
            if not isinstance(one, Pending):
                raise AgentError(f"ctx.gather takes ctx.ask(...) and ctx.request(...), not {type(one).__name__}")
        return tuple(await self._wait_for(inquiries)) if inquiries else ()

    async def wake(self, key: str, *, after: timedelta | None = None, at: datetime | None = None) -> None:
        """Set a durable timer, which comes back to `@agent.on_wake(key)` once, over restarts (docs/how-to/timers.md).

        A pending timer of this agent with the same key, in the same session, is replaced.

        Args:
            key: names the timer; 1 to 200 characters.
            after: how long from now on; a pause of the session is added.
            at: when, with a time zone; a pause does not move it. One that has passed goes off at once.

        Raises:
            AgentError: not one of `after` and `at`, or `at` has no time zone.
            EmitRefused, EmitUnconfirmed: as `emit`. A time beyond the session's deadline, and more timers than
                `limits.wakes` of the contract, are refused by the gate: `on_refused` is told.
        """
        draft = wake_draft(key, after, at)
        await self.emit(draft.payload, **draft.options)

    def say(self, messages: Sequence[ConversationMessage], user_id: str) -> None:
        """Add messages to the session's conversation in ctx.memory, in the transaction that saves `state`.

        Args:
            messages: what was said; the next call replaces it.
            user_id: whose conversation it is, if nobody began it yet.
        """
        said = f"{len(messages)} messages for {user_id}"

        def say() -> None:
            self.document.messages = NewMessages(self.session_id, user_id, self.agent_id, tuple(messages))

        self.journal.note("say", lambda: said, say)

    async def snapshot(self) -> AgentContext:
        """Return the context object of this invocation; made at the first call, and the same from then on.

        The packet, and what the handler emits afterwards, then belong to the session's conversation in ctx.memory.

        Raises:
            Reject: `metadata.agent_context` of the packet does not fit the protocol.
            Retry: the memory store does not answer.
        """
        return await self.journal.call("snapshot", str, self.context_object.take)

    async def once(
        self,
        key: str,
        fn: Callable[[], Awaitable[Any] | Any],
        *,
        after: Packet | UUID | None = None,
        not_made: tuple[type[Exception], ...] = (),
        reference: Callable[[Any], str] | None = None,
    ) -> JsonValue:
        """Make an effect on the world outside, unless it was made for this packet already; returns what it gave.

        The effect is claimed before `fn` runs and recorded after it. When the packet is handled again (redelivered,
        retried, requeued), the recorded result is returned and `fn` does not run. The log keeps what became of it, not
        the result (docs/how-to/effects.md).

        Args:
            key: names the effect among those of this handler and packet; 1 to 200 characters.
            fn: makes it. What it returns must be JSON, and is returned as JSON (a tuple comes as a list). One that is
                not `async` runs in a thread.
            after: a packet that this handler has emitted, or its id: `fn` runs when the gate has accepted it.
            not_made: exceptions of `fn` which prove that nothing has happened; it may then run again. EffectNotMade,
                Retry and Reject always do. After any other exception the effect is unknown.
            reference: returns what the other side calls the effect, from its result; the log keeps 200 characters.

        Raises:
            EmitRefused: the gate has refused the packet `after`: `fn` did not run.
            EmitTimeout: the gate has not accepted that packet in time; `fn` did not run.
            EffectUnknown: it was begun before, and how that ended was not recorded.
            EffectResultLost: it was made, and its result is not JSON, or larger than 256 KiB.
            Exception: what `fn` raised.
        """
        scope = self.effect_scope

        async def once() -> JsonValue:
            self.document.check()
            if after is not None:
                await self._accepted(after)
            return await self.resources.effects.once(scope, key, fn, not_made, log=self.effect_log, reference=reference)

        return await self._effect_call("once", key, once)

    async def settle(self, key: str, result: Any) -> JsonValue:
        """Record that an unknown effect of this packet has happened, with its result; return the result as JSON.

        Args:
            key: the effect's, as in `once`.
            result: what `once` returns from now on.

        Raises:
            EffectSettled: it is not unknown.
            ValueUnserialisable: the result is not JSON.
        """
        effects, scope, log = self.resources.effects, self.effect_scope, self.effect_log
        settled = await self._effect_call("settle", key, lambda: effects.settle(scope, key, result, log))
        self.tool_failures.pop(key, None)
        return settled

    async def release(self, key: str) -> None:
        """Record that an unknown effect of this packet has not happened: `once` makes it now.

        Args:
            key: the effect's, as in `once`.

        Raises:
            EffectSettled: it is not unknown.
        """
        effects, scope, log = self.resources.effects, self.effect_scope, self.effect_log
        await self._effect_call("release", key, lambda: effects.release(scope, key, log))
        self.tool_failures.pop(key, None)

    def check_tools(self, cause: Exception | None = None) -> None:
        """Raise EffectError when an effect of a tool that acts `once` needs somebody's word.

        Frameworks show the error of a tool to their model, which goes on. The worker calls this when the handler has
        ended; call it wherever the tools of a framework have run and the handler goes on.

        Args:
            cause: what a framework made of it.

        Raises:
            EffectUnknown: an effect was begun, and nobody knows how that ended.
            EffectResultLost: an effect was made, and what it gave could not be kept.
        """
        for failure in self.tool_failures.values():
            raise failure from None if cause is failure else cause

    def idempotency_key(self, key: str) -> UUID:
        """Return the same id whenever this packet is handled: for services that take such keys, or can look them up.

        Args:
            key: the effect's, as in `once`.
        """
        scope = self.effect_scope
        return uuid5(scope.packet_id, str(scope.effect_id(key)))

    def new_origin(self) -> UUID:
        """Return an id that this invocation makes again, in the same order, when it runs again after a crash.

        Raises AgentError in on_start.
        """
        return uuid5(self.packet.packet_id, f"{self.agent_id}/origin/{self.journal.next_origin()}")

    def critique_fail(self, reason: str) -> None:
        """Record that the handler dropped an idea by its own critique before emitting it, and continues with the next.

        Args:
            reason: stands beside the step, in `local_transitions`.

        Raises:
            AgentError: while a packet is being emitted.
        """
        coordination = self.coordination
        self.journal.note("critique_fail", lambda: reason, lambda: coordination.critique_fail(reason))

    def local_checks_fail(self, reason: str) -> None:
        """Record that the handler's artifact failed its own checks before it was emitted; `reason` says which.

        Raises as critique_fail.
        """
        coordination = self.coordination
        self.journal.note("local_checks_fail", lambda: reason, lambda: coordination.local_checks_fail(reason))

    def note_provenance(self, metadata: Mapping[str, JsonValue]) -> None:
        """Give the packets of what the handler returns this `metadata`, the answer of a request among them."""
        self.result_metadata = metadata

    def add_usage(self, *, tokens: int = 0, cost: float = 0.0) -> None:
        """Report what the handler has spent; the outcome takes it into the session's budget.

        Args:
            tokens: of a language model, say.
            cost: in the operator's unit, that of the budget.
        """
        self.used_tokens += tokens
        self.used_cost += cost

    # What the worker reads and says of the run.

    def open(self, packet: Packet) -> Packet:
        """Take the handled packet with its long texts; return it."""
        self._packet = packet
        return packet

    @property
    def context_object(self) -> Snapshot:
        """The context object of the packet. Raises AgentError in on_start."""
        if self._snapshot is None:
            is_paused = self.knowledge.sync is not None and self.knowledge.sync.paused
            self._snapshot = Snapshot(self.agent.actor, self.packet, self.resources.memory, is_paused=is_paused)
        return self._snapshot

    @property
    def usage(self) -> Usage | None:
        """What the handler has spent; None when it has reported nothing."""
        tokens, cost = max(0, self.used_tokens - self.reported[0]), max(0.0, self.used_cost - self.reported[1])
        return Usage(tokens=tokens or None, cost=cost or None) if tokens or cost else None

    def undo(self) -> None:
        """Forget what the handler changed and what was held, and end the invocation in LOCAL_HALT."""
        self.is_ended = True
        self.has_answered &= not any(self._is_answer(one.built.packet.payload) for one in self.document.held)
        self.document.reset()
        self.coordination.halt()

    @property
    def effect_scope(self) -> Scope:
        """What the effects of this invocation belong to. Raises AgentError in on_start."""
        return Scope.of(self.packet, self.agent_id)

    async def _effect_call(self, op: str, key: str, make: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Make a call about an effect. Within the function of another effect it is no call of the run.

        A run that goes on does not come to it: the outer effect has its result already.
        """
        return await (make() if is_making_effect() else self.journal.call(op, lambda: key, make))

    async def _accepted(self, packet: Packet | UUID) -> None:
        """Wait until the gate has accepted a packet of this agent. Raises as Emitter.accepted; AgentError."""
        if isinstance(packet, Packet):
            emitted = self._emitted.get(packet.packet_id, Built(packet))
        elif packet in self._emitted:
            emitted = self._emitted[packet]
        else:
            raise AgentError(f"after={packet}: this run has emitted no packet with that id: give the packet itself")
        if emitted.packet.sender.agent_id != self.agent_id:
            raise AgentError(
                f"after={emitted.packet.packet_id}: it is a packet of {emitted.packet.sender.agent_id}, which has "
                "reached this handler and so was accepted: give one that the handler has emitted"
            )
        await self._release()
        await self.resources.emitter.accepted(emitted)

    def _is_answer(self, payload: Payload) -> bool:
        if not isinstance(payload, AckPayload | NackPayload):
            return False
        return self._packet is not None and payload.acked_packet_id == self._packet.packet_id

    async def _send(self, draft: Draft, ordinal: int, *, is_followed: bool = True) -> Packet:
        """Publish a packet, or hold it until the state is saved that the handler has changed. Raises StateInvalid."""
        emitter, document, snapshot = self.resources.emitter, self.document, self._snapshot
        session_id = draft.options.get("session_id")
        is_remembered = is_followed and snapshot is not None and snapshot.is_followed_in(session_id)
        with self.coordination.emission() if is_followed else UNFOLLOWED as emission:
            is_held = not self.is_ended and bool(document.held or document.is_changed) and self._packet is not None
            if is_held and draft.options.get("requires_ack"):
                await self._release()
                is_held = False
            if not is_held:
                packet = await emitter.emit(draft, self._packet, ordinal, emission)
                return await self._follow(packet, is_remembered)
            held = await emitter.hold(draft, self._packet, ordinal, emission, is_remembered=is_remembered)
            if self.is_ended:  # meanwhile
                await self._publish(held)
                return held.built.packet
            document.held.append(held)
            self._held_bytes += len(held.publication.message.body)
            if self._held_bytes > MAX_HELD_BYTES:
                _log.warning("emissions_not_held", agent_id=self.agent_id, bytes=self._held_bytes, limit=MAX_HELD_BYTES)
                await self._release()
            return held.built.packet

    async def _release(self) -> None:
        """Publish what is held before the state is saved. Raises StateInvalid."""
        self.document.check()
        self._held_bytes, held = 0, self.document.held
        while held:
            one = held.pop(0)
            try:
                await self._publish(one)
            except BaseException:
                held.insert(0, one)
                raise

    async def _publish(self, held: HeldPacket) -> None:
        await self.resources.emitter.publish_held(held)
        await self._follow(held.built.packet, held.is_remembered)

    async def _follow(self, packet: Packet, is_remembered: bool) -> Packet:
        if is_remembered and self._snapshot is not None:
            await self._snapshot.follow(packet)
        return packet

    async def _wait_for(self, inquiries: Sequence[Inquiry[Any]]) -> list[Any]:
        """End this run until all of this is answered; in the run that follows, return the outcomes in their order.

        Raises:
            Suspended: the run is over.
            AskTimeout, RequestFailed, EmitRefused: how the first that failed ended.
            AgentError: the handler cannot wait here.
        """
        journal, ordinals = self.journal, list[int]()
        if not journal.is_beside:
            ordinals = [journal.next_ordinal() for one in inquiries for _ in range(one.count)]
            self.ack_ordinal = journal.next_ordinal()
            await journal.caught_up()
        op = inquiries[0].op if len(inquiries) == 1 else "gather"
        subject = partial(subject_of, inquiries)
        asked = journal.passed_wait(op, subject)
        if asked is None:
            raise await journal.waiting(op, subject, partial(self._prepared, inquiries, ordinals))
        self.is_acknowledged = True
        cite(evidence_of(asked))
        return outcomes_of(inquiries, asked)

    async def _prepared(self, inquiries: Sequence[Inquiry[Any]], ordinals: Sequence[int]) -> list[Asked]:
        self._check_may_wait()
        self.document.check()
        prepare, cause = self.resources.emitter.prepare, self._packet
        return [
            Asked(await prepare(draft.with_cited(cause), cause, ordinal), ordinal, group=group)
            for (group, draft), ordinal in zip(drafts_of(inquiries), ordinals, strict=True)
        ]

    def _check_may_wait(self) -> None:
        if self._packet is None:
            raise AgentError("on_start cannot wait: ask in the handler of a packet")
        self.journal.check_may_wait(is_within=is_making_effect())
        if not self.knowledge.moment.contract:
            raise AgentError("only a session of apc/1.1 with its own contract knows questions: open one for it")

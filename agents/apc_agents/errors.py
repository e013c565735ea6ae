"""Errors of the agent SDK.

ApcError
  AgentError
    AgentInvalid        an agent or one of its handlers cannot be used; found when it is built
    AgentNotFound       `module:agent` leads to no agent
    AgentKeyUnusable      the signing key cannot be read or written, or is no Ed25519 key
    EmitError
      EmitRefused       (code, rule, path, message, remedy): the contract refuses the packet
      EmitRejected      (nack): the recipient answered NACK to an emit that asked for an ACK
      EmitTimeout       no ACK in time for an emit that asked for one
      EmitUnconfirmed   the broker did not confirm in time; publishing the same packet again is safe
    StateError
      StateInvalid      ctx.state holds something that JSON does not know
      StateStale        another worker has saved this document since it was read
      StateUnavailable  the state store does not answer
    ContextError        apc_minds.context.turns
    ActionError         what goes wrong with an action; most of them in apc_minds.tools
    MemoryStoreError    what goes wrong with a memory
    EffectError         apc_agents.effects
    WaitError
      AskTimeout            nobody has answered a question or request in time
      AnswerUnusable        an answer fits the schema of the question, and its model refuses it
      RequestFailed         the agent that was asked refused, failed, or gave no such result
      ContinuationDiverged  a handler that goes on does not repeat what is recorded of it
    ProcessEnded        a child process has ended while it handled a packet
    HandlerFailed       a handler raised in a test client; the cause is its exception

A handler itself raises `Reject` or `Retry` to end its packet in another way than by an outcome.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from apc_contracts.errors import ApcError
from apc_contracts.judging.verdict import remedy_of

if TYPE_CHECKING:
    from apc_contracts.packet import Packet
    from apc_contracts.payloads.by_type import NackPayload


class AgentError(ApcError):
    """Something went wrong in an agent or its worker.

    ```python
    for error in (AgentInvalid, AgentNotFound, EmitError, StateError, EffectError, WaitError, HandlerFailed):
        assert issubclass(error, AgentError)
    ```
    """


class AgentKeyUnusable(AgentError):
    """The key with which an agent signs cannot be read or written, or is no Ed25519 key."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"the agent's signing key {where} cannot be used: {reason}; it must be Ed25519 in PEM (PKCS8)")
        self.where = where


class AgentInvalid(AgentError):
    """An agent or one of its handlers cannot be used.

    ```python
    try:
        Agent("a desk", role="desk", swarm="support")
    except AgentInvalid as error:
        assert str(error).startswith("agent_id 'a desk' is no id")
    ```
    """


class ProcessEnded(AgentError):
    """A child process has ended while it handled a packet."""

    def __init__(self, place: str, code: int | None) -> None:
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with {code}"
        super().__init__(f"the process of {place} {how} while it handled a packet")
        self.code = code


class AgentNotFound(AgentError):
    """`module:agent` leads to no agent."""


class EmitError(AgentError):
    """A packet was not emitted, or not acknowledged.

    ```python
    @desk.on(Question)
    async def ask_reader(question: Question, ctx: HandlerContext) -> Answer:
        try:
            await ctx.emit(question, to="reader", requires_ack=True)
        except EmitRefused as error:
            return Answer(text=f"not allowed: {error.message}. {error.remedy}")
        except EmitRejected as error:
            return Answer(text=f"{error.nack.sender.agent_id} will not: {error.nack.payload.reason}")
        except EmitTimeout as error:
            return Answer(text=f"sent, no answer from {', '.join(error.missing)}")
        except EmitUnconfirmed as error:
            raise Retry(timedelta(seconds=5), f"the broker has not confirmed {error.message_id}") from error
        return Answer(text="the reader has it")
    ```
    """


class EmitRefused(EmitError):
    """The contract refuses the packet.

    `code` (docs/specification/contract.md section 12), `path` (dotted with [i], `$` = whole) and `message` say why,
    `rule` names the rule, and `remedy` says what corrects the packet. A rule of the team also gives its own sentence
    (`say`), its expression (`requires`) and the `values` that it read. `retry_after_ms` is set when another packet may
    get through after that time (QUOTA_EXCEEDED, OVERLOADED).

    ```python
    @desk.on(Question)
    async def boast(question: Question, ctx: HandlerContext) -> None:
        try:
            await ctx.emit(Answer(text="sure"), confidence=7)
        except EmitRefused as error:
            ctx.state["why"] = [error.code, error.path]


    async with AgentTestClient(desk) as client:
        await client.send(Question(text="why"))
        assert await client.state() == {"why": ["SCHEMA_INVALID", "confidence"]}
    ```
    """

    def __init__(
        self,
        code: str,
        path: str,
        message: str,
        retry_after_ms: int | None = None,
        *,
        rule: str = "",
        say: str | None = None,
        requires: str | None = None,
        values: Mapping[str, Any] | None = None,
        remedy: str | None = None,
    ) -> None:
        why = f"{code} at {path}: {message}"
        super().__init__(f"{why.removesuffix('.')}. Remedy: {remedy}" if remedy else why)
        self.code = code
        self.rule = rule
        self.path = path
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.say = say
        self.requires = requires
        self.values = dict(values or {})
        self.remedy = remedy or remedy_of(code)

    @classmethod
    def of(cls, refusal: Mapping[str, Any]) -> "EmitRefused":
        """Return the error of a `refusal` in its JSON form, as a NACK of the gate has it in `metadata.refusal`."""

        def text(name: str) -> str | None:
            return None if refusal.get(name) is None else str(refusal[name])

        wait, values = refusal.get("retry_after_ms"), refusal.get("values")
        return cls(
            text("code") or "REFUSED",
            text("path") or "$",
            text("message") or "the gate refused the packet",
            wait if isinstance(wait, int) else None,
            rule=text("rule") or "",
            say=text("say") or (text("message") if refusal.get("requires") is not None else None),
            requires=text("requires"),
            values=values if isinstance(values, Mapping) else None,
            remedy=text("remedy"),
        )


class EmitRejected(EmitError):
    """The recipient answered NACK; `nack` is the packet that said so."""

    def __init__(self, nack: "Packet[NackPayload]") -> None:
        super().__init__(f"{nack.sender.agent_id} answered {nack.payload.ack_status}: {nack.payload.reason}")
        self.nack = nack


class EmitTimeout(EmitError):
    """No ACK for the packet `packet_id` came in time, `why` says whose: it is published, the log has what became of it.

    `missing` maps agent_id to where the packet stands for it; empty when not even the orchestrator has answered.
    """

    def __init__(self, packet_id: UUID, why: str, missing: Mapping[str, str] | None = None) -> None:
        super().__init__(f"no ACK for packet {packet_id}: {why}")
        self.packet_id = packet_id
        self.missing = dict(missing or {})


class EmitUnconfirmed(EmitError):
    """The broker did not confirm the message `message_id` in time; `why` says what it said.

    The packet may be stored. Publishing it again is safe.
    """

    def __init__(self, message_id: str, why: str) -> None:
        super().__init__(f"message {message_id} got no confirm: {why}")
        self.message_id = message_id


class StateError(AgentError):
    """The state of an agent cannot be read or saved.

    A handler seldom meets one: the worker reads the state again (StateStale), and waits for a store that is away
    (StateUnavailable).

    ```python
    states = InMemoryStateStore()
    assert await states.save("desk", "session-1", SavedState(b'{"state": {}}', 0)) == 1
    try:
        await states.save("desk", "session-1", SavedState(b'{"state": {"n": 1}}', 0))
    except StateStale as error:
        assert error.revision == 0
    assert issubclass(StateStale, StateError) and issubclass(StateUnavailable, StateError)
    ```
    """


class StateInvalid(StateError):
    """ctx.state holds something that JSON does not know.

    ```python
    @desk.on(Question)
    async def keep(question: Question, ctx: HandlerContext) -> None:
        ctx.state["asked"] = object()


    async with AgentTestClient(desk) as client:
        try:
            await client.send(Question(text="why"))
        except HandlerFailed as error:
            assert isinstance(error.__cause__, StateInvalid)
    ```
    """


class StateStale(StateError):
    """Another worker has saved the document of (`agent_id`, `session_id`) since it was read at `revision`."""

    def __init__(self, agent_id: str, session_id: str, revision: int) -> None:
        super().__init__(f"state of {agent_id} in session {session_id} has left revision {revision}")
        self.revision = revision


class StateUnavailable(StateError):
    """The state store does not answer."""


class WaitError(AgentError):
    """A handler's wait did not end with an answer.

    ```python
    @desk.on(Question)
    async def ask_expert(question: Question, ctx: HandlerContext) -> Answer:
        try:
            approval = await ctx.ask(question.text, to=Role("lead"), timeout=timedelta(hours=8), returns=Question)
            question = approval.answer or question  # as the lead put it
        except AnswerUnusable as error:
            return Answer(text=f"{error.by} filled in what the model refuses: {error.reason}")
        try:
            return await ctx.request(question, to="expert", returns=Answer, timeout=timedelta(minutes=5))
        except AskTimeout as error:
            return Answer(text=f"nobody answered {error.packet_id}")
        except RequestFailed as error:
            return Answer(text=f"{error.by} failed: {error.reason}")


    assert issubclass(ContinuationDiverged, WaitError)  # not to be caught: run the former code, and requeue
    ```
    """


class AskTimeout(WaitError):
    """Nobody has answered the question `packet_id` in time."""

    def __init__(self, packet_id: UUID) -> None:
        super().__init__(f"nobody has answered the question {packet_id} in time")
        self.packet_id = packet_id


class AnswerUnusable(WaitError):
    """What `by` answered to the question `packet_id` fits its schema, and the model refuses it: `reason` says why.

    A validator of the model, say, knows more than a JSON Schema can.
    """

    def __init__(self, packet_id: UUID, by: str, reason: str) -> None:
        super().__init__(f"the model refuses what {by} answered to question {packet_id}: {reason}")
        self.packet_id = packet_id
        self.by = by
        self.reason = reason


class RequestFailed(WaitError):
    """The agent that was asked by `packet_id` gave no result; `by` is the agent, `reason` what it said."""

    def __init__(self, packet_id: UUID, by: str, reason: str) -> None:
        super().__init__(f"request {packet_id} failed at {by}: {reason}")
        self.packet_id = packet_id
        self.by = by
        self.reason = reason


class ContinuationDiverged(WaitError):
    """A handler that goes on after a wait does not repeat what is recorded of it: nothing is guessed.

    `where` names the recorded call and the one that was made.
    """

    def __init__(self, where: str) -> None:
        super().__init__(
            f"the handler has changed since it began to wait: {where}. Run the handler as it was and requeue this "
            "delivery, or discard it"
        )


class HandlerFailed(AgentError):
    """A handler raised in a test client; `__cause__` is what it raised.

    ```python
    @desk.on(Question)
    async def fail(question: Question, ctx: HandlerContext) -> None:
        raise KeyError(question.text)


    async with AgentTestClient(desk) as client:
        try:
            await client.send(Question(text="why"))
        except HandlerFailed as error:
            assert isinstance(error.__cause__, KeyError)
    ```
    """


class Retry(Exception):
    """Raised by a handler: hand this packet over once more, not before `after` has passed.

    Without a time, or with 0, the orchestrator waits longer after each attempt (the contract's back-off, with jitter).
    After the packet's retry_limit (default the contract's, 10) its delivery is a dead letter, whose error says so.

    ```python
    @desk.on(Question)
    async def later(question: Question, ctx: HandlerContext) -> None:
        raise Retry(timedelta(seconds=30), "the index is being built")


    async with AgentTestClient(desk) as client:
        await client.send(Question(text="why"))
        assert "retry" in {receipt.kind for receipt in client.receipts}
    ```

    Args:
        after: how long at least until the next attempt.
        reason: stands in the log.

    Raises:
        ValueError: `after` is negative.
    """

    def __init__(self, after: timedelta = timedelta(0), reason: str = "retry") -> None:
        if after < timedelta(0):
            raise ValueError(f"Retry(after={after}): a delay cannot be negative; leave it out for the gate's back-off")
        super().__init__(reason)
        self.after = after
        self.reason = reason


class Reject(Exception):
    """Raised by a handler: this packet is refused; its sender gets a NACK with the `reason`.

    ```python
    @desk.on(Question)
    async def choose(question: Question, ctx: HandlerContext) -> Answer:
        if not question.text:
            raise Reject("a question needs a text")
        return Answer(text="because")


    async with AgentTestClient(desk) as client:
        nack = await client.send(Question(text=""))
        assert (nack.packet_type, nack.payload.reason) == ("NACK", "a question needs a text")
    ```
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class MemoryStoreError(AgentError):
    """A memory store cannot do what it is asked to.

    AgentError
      MemoryStoreError
        ValueInvalid         (path): a value that JSON does not know, or that is too large
        ConversationInvalid  (path): a conversation that cannot be stored, or a stored one that cannot be read
        MemoryArgumentInvalid  (place): a page, a moment or an id outside its range
        OwnerForeign         what is written belongs to another owner, or to another user
        StaleRevision        (revision, current): somebody else has written it since it was read
        UnknownSession       (session_id): nobody began this session
        MemoryUnavailable    the database does not answer

    Whatever raises one of them leaves the memory as it was.
    """


class ValueInvalid(MemoryStoreError):
    """A value that JSON does not know, or that is too large; `path` leads to it (`$` = the whole)."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"value refused at {path}: {message}")
        self.path = path


class ConversationInvalid(MemoryStoreError):
    """A conversation that cannot be stored, or a stored one that cannot be read; `path` leads to the field."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"conversation refused at {path}: {message}")
        self.path = path


class MemoryArgumentInvalid(MemoryStoreError):
    """An argument outside its range; `place` names it."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place = place


class OwnerForeign(MemoryStoreError):
    """What is written belongs to another owner, or to another user."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} belongs to somebody else: use another id, or the store of its owner")


class StaleRevision(MemoryStoreError):
    """Somebody else has written it since it was read; `current` is 0 when there is none."""

    def __init__(self, what: str, revision: int, current: int) -> None:
        super().__init__(f"{what} has revision {current}, not {revision}: read it again")
        self.revision = revision
        self.current = current


class UnknownSession(MemoryStoreError):
    """Nobody began this session."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"unknown session {session_id!r}: begin it first, or check its id")
        self.session_id = session_id


class MemoryUnavailable(MemoryStoreError):
    """The database does not answer."""


class ActionError(AgentError):
    """Something went wrong with an action.

    AgentError
      ActionError
        ToolInvalid        a function that cannot be a tool; found when it is registered
        ActionsRefused     (problems): a response whose actions cannot run; nothing of it has run
        ReferenceUnknown   (reference): a `${{…}}` that points nowhere
        ValueUnserialisable  (place): a value that JSON does not know
        ToolFailed         a tool that raised, took too long, or gave what JSON does not know
        KnowledgeOutOfScope    (knowledge_id): knowledge that the response does not list
        TaskUnknown        (task_id): no such task
        TaskAmbiguous      (task_id, agents): several agents have a task of this id
        TaskLost           (task_id): another worker has taken the task over, or it was cancelled
    """


class ValueUnserialisable(ActionError):
    """A value that JSON does not know; `place` leads to it."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place = place

"""What agents of other frameworks share when they join the bus: turns that are made once, and stops that become asks.

A run of such an agent is cut into turns: each goes up to the end, or to calls that wait for people. A turn is an effect
of its handler, so a handler that runs again has what the turn gave. A turn that was interrupted runs again: what it
did outside it did with tools that act once (`apc_agents.once`), and those are never repeated.
"""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any, Final, TypedDict

import orjson
from pydantic import BaseModel, JsonValue, ValidationError

from apc_agents.agent import Agent
from apc_agents.clearance import PROVENANCE, Clearance
from apc_agents.effects import EffectUnknown
from apc_agents.emission import Destination
from apc_agents.errors import AgentError, AgentInvalid, MemoryUnavailable, Reject, Retry
from apc_agents.handling.handler_context import HandlerContext
from apc_agents.handling.inquiry import Approval
from apc_agents.ports import BaseMemoryStore
from apc_agents.typed import schema_of
from apc_contracts.agent import SecurityLevel
from apc_contracts.packet import request_of
from apc_contracts.payloads.by_type import MAX_TEXT
from apc_contracts.vocabulary import Right
from apc_minds.text import fenced, new_fence

APPROVAL_TIMEOUT: Final = timedelta(hours=1)
AWAY_AFTER: Final = timedelta(seconds=5)
"""When an input is tried again whose model, or memory, does not answer."""
MAX_TURNS: Final = 64
"""Turns of one input: as many as a handler may wait."""
MAX_KEPT_BYTES: Final = 4 * 1024 * 1024
"""Of one value that is kept of a run."""


@dataclass(frozen=True, slots=True)
class Approvers:
    """Who is asked about tool calls, and for how long; no answer in time is a denial.

    ```python
    from apc_minds.joined import Approvers

    approvers = Approvers(to=Role("release-manager"), timeout=timedelta(days=1))
    ```

    Attributes:
        to: people by their ids, or everybody with a role.
        timeout: default an hour.
    """

    to: Destination
    timeout: timedelta = APPROVAL_TIMEOUT


@dataclass(frozen=True, slots=True)
class Stop:
    """Something of a turn that people decide: `id` names it to the framework; `text` and `content` are shown."""

    id: str
    text: str
    content: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn came to: its stops, or without any its output as JSON; `state` is what the next turn goes on from."""

    stops: tuple[Stop, ...] = ()
    output: JsonValue = None
    tokens: int = 0
    state: str | None = None

    def to_result(self) -> dict[str, JsonValue]:
        """Return it as the result of the turn's effect, with the digest of the state in the place of the state."""
        stops: list[JsonValue] = [{"id": one.id, "text": one.text, "content": one.content} for one in self.stops]
        digest = None if self.state is None else digest_of(self.state)
        return {"stops": stops, "output": self.output, "tokens": self.tokens, "state": digest}


def digest_of(text: str) -> str:
    """Return the SHA-256 of a text in hex."""
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


class Kept:
    """What is kept of the run for one packet: values of the agent's state beside `ctx.state`, none of them in the log.

    They are agent states of the session: `apc memory erase` deletes them with it, and the end of the run does.
    """

    def __init__(self, memory: BaseMemoryStore, agent_id: str, session_id: str, prefix: str) -> None:
        self._memory = memory
        self._agent_id = agent_id
        self._session_id = session_id
        self._prefix = prefix

    @classmethod
    def of(cls, ctx: HandlerContext, framework: str) -> "Kept":
        """Return what this handler keeps."""
        return cls(ctx.memory, ctx.agent_id, ctx.session_id, f"{framework}/{ctx.packet.packet_id}/")

    async def put(self, values: Mapping[str, JsonValue]) -> None:
        """Keep values, all or none. Raises AgentError for one that is too large, MemoryUnavailable."""
        for name, value in values.items():
            size = len(orjson.dumps(value))
            if size > MAX_KEPT_BYTES:
                raise AgentError(
                    f"the state of the run has {size} bytes ({name}), the limit is {MAX_KEPT_BYTES}: let its tools "
                    "return less, or keep large values in ctx.artifacts"
                )
        named = {f"{self._prefix}{name}": value for name, value in values.items()}
        await self._memory.store_agent_states(self._agent_id, self._session_id, named)

    async def get(self, *names: str) -> dict[str, Any]:
        """Return those of the values that are there. Raises MemoryUnavailable."""
        keys = [f"{self._prefix}{name}" for name in names]
        found = await self._memory.get_agent_states(self._agent_id, self._session_id, keys)
        return {key.removeprefix(self._prefix): value for key, value in found.items()}

    async def forget(self) -> None:
        """Delete all of them. Raises MemoryUnavailable."""
        await self._memory.delete_agent_states(self._agent_id, self._session_id, self._prefix)


class JoinedOptions(TypedDict, total=False):
    """What every adapter passes on to JoinedAgent, which says what each of them means."""

    role: str | None
    swarm: str
    completes: bool
    approvers: Approvers | None
    takes_from: SecurityLevel
    clearance: Clearance | None
    rights: Iterable[str]
    concurrency: int
    capabilities: Iterable[str]


class JoinedAgent(Agent):
    """An agent of another framework: an adapter says how a turn is made, this what is asked, kept and emitted.

    Args:
        agent_id: as Agent.
        input: the model whose MESSAGEs and requests it takes.
        returns: the model with `@message` that it gives.
        role: as registered; default the agent_id.
        swarm: as Agent.
        completes: whether its output ends the task (`ctx.complete`) instead of going to the sender. The output for a
            request (`ctx.request`) is the answer in any case.
        approvers: who decides what waits for people.
        takes_from: the lowest level of a sender whose inputs it takes; others get a NACK, for what they write would
            lead tools.
        clearance: the level of each sender; default `user` for the own swarm and for agents with the right `operate`,
            `public` for others.
        rights: as Agent.
        concurrency: as Agent.
        capabilities: as Agent.

    Raises:
        AgentInvalid: as Agent; `returns` has no `@message`.
    """

    framework: str
    """What its kept values are named after."""

    def __init__(
        self,
        agent_id: str,
        *,
        input: type[BaseModel],
        returns: type[BaseModel],
        role: str | None = None,
        swarm: str = "agents",
        completes: bool = False,
        approvers: Approvers | None = None,
        takes_from: SecurityLevel = SecurityLevel.USER,
        clearance: Clearance | None = None,
        rights: Iterable[str] = (),
        concurrency: int = 1,
        capabilities: Iterable[str] = (),
    ) -> None:
        super().__init__(
            agent_id,
            role=role or agent_id,
            swarm=swarm,
            rights=rights,
            concurrency=concurrency,
            capabilities=capabilities,
            clearance=clearance or clearance_within(swarm),
        )
        if schema_of(returns) is None:
            raise AgentInvalid(
                f'agent {agent_id}: returns={returns.__name__}: give a model that is decorated with @message("name/1")'
            )
        self.returns = returns
        self.completes = completes
        self.approvers = approvers
        self.takes_from = takes_from
        self.on(input)(self._handle)

    @property
    def models(self) -> frozenset[type[BaseModel]]:
        """The input and the output."""
        return super().models | {self.returns}

    @abstractmethod
    async def make_turn(
        self, ctx: HandlerContext, content: Any, number: int, state: str | None, answers: Mapping[str, Approval]
    ) -> Turn:
        """Run the agent up to its end or its next stops.

        A turn that was interrupted is made again, so it goes on from what the framework has kept.

        Args:
            ctx: of the handler.
            content: the input.
            number: of the turn, from 0.
            state: what the turn before left, exactly as it left it.
            answers: to the stops of the turn before, by their ids.
        """

    async def _handle(self, content: Any, ctx: HandlerContext) -> Any:
        trigger = ctx.trigger
        if trigger.level.rank < self.takes_from.rank:
            raise Reject(
                f"{self.agent_id} takes no inputs of {trigger.senders[0].agent_id}, whose level is "
                f"{trigger.level.value}: it needs a clearance of {self.takes_from.value}"
            )
        try:
            output = await self._run(content, ctx)
        except MemoryUnavailable as away:
            raise Retry(AWAY_AFTER, str(away)) from away
        provenance = {PROVENANCE: trigger.provenance(trigger.level)}
        if self.completes and request_of(ctx.packet) is None:
            return await ctx.complete(output, metadata=provenance)
        ctx.note_provenance(provenance)
        return output

    async def _run(self, content: Any, ctx: HandlerContext) -> BaseModel:
        kept = Kept.of(ctx, self.framework)
        answers: dict[str, Approval] = {}
        before: str | None = None
        """The digest of what the turn before has left."""
        for number in range(MAX_TURNS):
            turn = await self._turn_once(ctx, content, number, before, answers)
            ctx.add_usage(tokens=turn["tokens"])
            if not turn["stops"]:
                await kept.forget()
                return self._output(turn["output"])
            answers, before = await self._ask(ctx, turn["stops"]), turn["state"]
        raise AgentError(f"{self.agent_id} has asked in {MAX_TURNS} turns, and asks again: it goes in circles")

    async def _turn_once(
        self, ctx: HandlerContext, content: Any, number: int, before: str | None, answers: Mapping[str, Approval]
    ) -> Any:
        """Return the result of a turn: of making it now, or of the run that made it.

        A turn that is unknown is made again, and so is one that failed. What acted in it is an effect by itself: if
        that one is unknown, so is the turn until somebody has settled it.
        """
        kept = Kept.of(ctx, self.framework)

        async def make() -> dict[str, JsonValue]:
            state = None if before is None else await self._left(kept, number - 1, before)
            try:
                turn = await self.make_turn(ctx, content, number, state, answers)
            except Exception as error:
                ctx.check_tools(error)
                raise
            ctx.check_tools()
            if turn.state is not None:
                await kept.put({f"state-{number}": turn.state})
            return turn.to_result()

        key = f"turn-{number}"
        once: Callable[[], Awaitable[Any]] = lambda: ctx.once(key, make, not_made=(Exception,))  # noqa: E731
        try:
            return await once()
        except EffectUnknown as unknown:
            if unknown.effect_id.key != key:
                raise
        await ctx.release(key)
        return await once()

    async def _left(self, kept: Kept, number: int, digest: str) -> str:
        """Return what a turn has left. Raises AgentError when it is gone, or is not what the turn has left."""
        state = (await kept.get(f"state-{number}")).get(f"state-{number}")
        if state is None:
            raise AgentError(
                f"what turn {number} of {self.agent_id} has left is not kept any more: it was erased. Send the input "
                "again"
            )
        if not isinstance(state, str) or digest_of(state) != digest:
            raise AgentError(
                f"what is kept of turn {number} of {self.agent_id} is not what the turn has left: somebody else wrote "
                "it. Nothing was resumed"
            )
        return state

    async def _ask(self, ctx: HandlerContext, stops: Sequence[Any]) -> dict[str, Approval]:
        """End the run of the handler until all stops are answered; then return the answers."""
        if self.approvers is None:
            names = ", ".join(sorted({str(one["text"]) for one in stops}))[:MAX_TEXT]
            raise AgentError(
                f"{self.agent_id} waits for people, and asks nobody: give approvers=Approvers(Role(...)). {names}"
            )
        to, timeout = self.approvers.to, self.approvers.timeout
        pending = [ctx.ask(one["text"], to=to, timeout=timeout, content=one["content"]) for one in stops]
        ends: list[Approval] = list(await ctx.gather(*pending))
        return {one["id"]: end for one, end in zip(stops, ends, strict=True)}

    def _output(self, given: JsonValue) -> BaseModel:
        try:
            return self.returns.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "$"
            raise AgentError(f"{self.agent_id} gave no {self.returns.__name__}: {place}: {first['msg']}") from error


def clearance_within(swarm: str) -> Clearance:
    """Return the default clearance: anyone who may start a session of the team may use the team's tools by it."""
    return Clearance(swarms={swarm: SecurityLevel.USER}, rights={Right.OPERATE: SecurityLevel.USER})


def source_of(content: BaseModel, ctx: HandlerContext) -> dict[str, JsonValue]:
    """Return where an input comes from, for the marks around it."""
    sender = ctx.packet.sender
    origin: dict[str, JsonValue] = {
        "agent_id": sender.agent_id,
        "role": sender.role,
        "swarm_id": sender.swarm_id,
    }
    return {"from": "packet", "schema": schema_of(type(content)), "sender": origin}


async def fence_of(kept: Kept) -> str:
    """Return the token of the marks of this run: the same when the handler runs again."""
    found = (await kept.get("fence")).get("fence")
    if isinstance(found, str):
        return found
    fence = new_fence()
    await kept.put({"fence": fence})
    return fence


def denial_of(what: str, end: Approval, fence: str) -> str:
    """Return what a model is told of a call that was not approved; the note of the person is data."""
    said = f"{what} was not called: {end.outcome.value}"
    return said if end.note is None else f"{said}\n{fenced(end.note, fence, {'from': 'approver'})}"


def shown_arguments(given: Any) -> JsonValue:
    """Return the arguments of a call as people are shown them: the JSON that they are, or the text."""
    if isinstance(given, str):
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(given)  # type: ignore[no-any-return]
    return given if isinstance(given, str | dict | list) else str(given)

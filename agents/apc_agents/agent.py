"""An agent: who it is and which function handles which packets. Pure description; a Worker runs it."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from apc_agents.clearance import Clearance
from apc_agents.errors import AgentError, AgentInvalid, Reject
from apc_agents.ports import BaseMemoryStore, Tools, require_mind, without_mind
from apc_agents.scheduling import TICK_SCHEMA, CronInvalid, Misfire, Schedule, Tick, parse_cron, tick_id
from apc_agents.typed import (
    AnyHandler,
    check_handler,
    check_listener,
    check_start,
    check_typed,
    models_of,
    schema_handled,
    typed_handler,
    with_dependencies,
)
from apc_contracts.agent import AgentContext, ContextMessage, SecurityLevel
from apc_contracts.contract_model import ID_PATTERN
from apc_contracts.identity.registry import ANY_SCHEMA, SPEAKS_ALL, Registration
from apc_contracts.packet import MAX_RETRY_LIMIT, Actor, Packet
from apc_contracts.payloads.by_type import MessagePayload, SignalFields, SignalPayload
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.vocabulary import CONTROL_TYPES, ORCHESTRATOR, PacketType, Right, Signal

if TYPE_CHECKING:
    from apc_agents.effect_maker import EffectMaker
    from apc_agents.emitter import Emitter
    from apc_agents.task_port import TaskStore
    from apc_bus.artifacts import ArtifactStore
    from apc_bus.settings import RelevanceSettings
    from apc_bus.topology import AgentQueues

# The handlers of an agent: which one takes a packet.

WAKE_PREFIX = "wake:"
"""Before the key of a timer, in the kind of the handler that takes it."""
TICK_PREFIX = "tick:"
"""Before the name of a schedule, in the kind of the handler that takes its Ticks."""

Kind = Signal | str | None
Runs = Literal["loop", "thread", "process"]
"""Where the handlers of an agent run on a host."""


@dataclass(frozen=True, slots=True)
class HandlerEntry:
    """A registered handler."""

    function: AnyHandler
    packet_type: PacketType
    kind: Kind = None
    """The signal, the schema of a MESSAGE, a timer or a schedule; None = those without their own handler."""
    min_relevance: float | None = None
    retries: int = 0


class HandlerTable:
    """Handlers by packet type and kind."""

    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self._entries: dict[tuple[PacketType, Kind], HandlerEntry] = {}

    def add(self, entry: HandlerEntry, what: str) -> None:
        """Add a handler. Raises AgentInvalid when another takes the same; `what` says what in words."""
        if (entry.packet_type, entry.kind) in self._entries:
            raise AgentInvalid(f"agent {self._agent_id} has two {what}")
        self._entries[entry.packet_type, entry.kind] = entry

    @property
    def entries(self) -> Mapping[tuple[PacketType, Kind], HandlerEntry]:
        """Every handler by its packet type and its kind."""
        return self._entries

    @property
    def schemas(self) -> frozenset[str | None]:
        """The schemas whose MESSAGEs are taken; None among them when every schema is."""
        kinds = {kind for packet_type, kind in self._entries if packet_type is PacketType.MESSAGE}
        return frozenset(TICK_SCHEMA if kind and kind.startswith(TICK_PREFIX) else kind for kind in kinds)

    def find(self, packet: Packet) -> HandlerEntry | None:
        """Return the handler that takes a packet; None when there is none."""
        packet_type = packet.packet_type
        entry = None
        if packet_type in (PacketType.SIGNAL, PacketType.HEARTBEAT):
            return self._find_for_signal(packet_type, packet.payload_as(SignalFields))
        elif packet_type is PacketType.MESSAGE:
            entry = self._entries.get((packet_type, _kind_of(packet.payload_as(MessagePayload))))
        return entry or self._entries.get((packet_type, None))

    def _find_for_signal(self, packet_type: PacketType, payload: SignalFields) -> HandlerEntry | None:
        entry = None
        if isinstance(payload, SignalPayload) and payload.request is not None:
            return self._entries.get((PacketType.MESSAGE, payload.request.schema_id))
        if isinstance(payload, SignalPayload) and payload.wake is not None:
            entry = self._entries.get((packet_type, f"{WAKE_PREFIX}{payload.wake.key}"))
        return entry or self._entries.get((packet_type, payload.signal)) or self._entries.get((packet_type, None))


def handler_for(
    function: AnyHandler, taken: PacketType | type[BaseModel], signal: Signal | None
) -> tuple[AnyHandler, PacketType, Kind]:
    """Return what a worker calls for a packet, and what it is registered for. Raises AgentInvalid."""
    function = with_dependencies(function, 2)
    if isinstance(taken, PacketType):
        check_handler(function, taken)
        return function, taken, signal
    if not (isinstance(taken, type) and issubclass(taken, BaseModel)):
        raise AgentInvalid(f"@agent.on takes a PacketType or a model that is decorated with @message, not {taken!r}")
    schema_id = schema_handled(taken)
    return typed_handler(function, taken), PacketType.MESSAGE, schema_id


def _kind_of(payload: MessagePayload) -> str:
    """Return what takes a MESSAGE: a Tick is its schedule's."""
    return f"{TICK_PREFIX}{payload.content.get('name')}" if payload.schema_id == TICK_SCHEMA else payload.schema_id


# What `@agent.every` makes: the schedule, and the handler that takes its Ticks and nobody else's.


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """What `@agent.every` is told beside the cron line."""

    timezone: str
    misfire: str
    members: tuple[str, ...]
    contract: str
    deadline: timedelta


def make_schedule(agent_id: str, name: str, line: str, options: ScheduleOptions) -> Schedule:
    """Return the schedule. Raises AgentInvalid, which names the schedule and says what is wrong."""
    what = f"agent {agent_id}: schedule {name!r}"
    if not re.match(ID_PATTERN, name):
        raise AgentInvalid(f"{what} has a name that is no id: 1 to 64 letters, digits, '.', '_', ':' or '-'")
    try:
        cron = parse_cron(line, options.timezone, datetime.now(UTC))
        policy = Misfire(options.misfire)
        spec = TaskSessionSpec(
            contract=options.contract,
            members=tuple(dict.fromkeys((agent_id, *options.members))),
            deciders=(agent_id,),
            deadline_ms=round(options.deadline / timedelta(milliseconds=1)),
        )
    except CronInvalid as error:
        raise AgentInvalid(f"{what}: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise AgentInvalid(f"{what}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except ValueError as error:
        raise AgentInvalid(f"{what}: misfire {options.misfire!r} is none of {', '.join(Misfire)}") from error
    return Schedule(name, cron, policy, spec)


def tick_handler(agent_id: str, function: AnyHandler) -> AnyHandler:
    """Return the handler of a schedule's Ticks; it rejects a Tick that the agent itself has not published.

    Raises:
        AgentInvalid: the function is not `async def handler(tick: Tick, ctx: HandlerContext)`.
    """
    handler = with_dependencies(function, 2)
    check_typed(handler, Tick)

    @wraps(handler)
    async def take(tick: Tick, ctx: Any) -> Any:
        packet = ctx.packet
        if not is_own_tick(agent_id, packet, tick):
            raise Reject(
                f"only {agent_id} itself sends its Ticks, each with its own id: this one is of "
                f"{packet.sender.agent_id}, with the id {packet.packet_id}"
            )
        return await handler(tick, ctx)

    return typed_handler(take, Tick)


def is_own_tick(agent_id: str, packet: Packet, tick: Tick) -> bool:
    """Return whether an agent's schedule has published this Tick: the gate lets nobody else take the id."""
    return packet.sender.agent_id == agent_id and packet.packet_id == tick_id(agent_id, tick)


# Handlers that time calls: timers that the agent has set, and cron lines.

HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[Any]])


class TimedHandlers:
    """The part of an `Agent` that registers such handlers."""

    agent_id: str
    rights: frozenset[Right]
    schedules: dict[str, Schedule]
    """What `every` has registered, by name."""
    _handlers: HandlerTable

    def schedule(self, name: str) -> Schedule:
        """Return a schedule of the agent by its name. Raises AgentError when it has no such schedule."""
        if name not in self.schedules:
            raise AgentError(
                f"agent {self.agent_id} has no schedule {name!r}; it has {', '.join(self.schedules) or 'none'}"
            )
        return self.schedules[name]

    def on_wake(self, key: str | None = None) -> Callable[[HandlerT], HandlerT]:
        """Register `async def woken(wake: Packet[SignalPayload], ctx: HandlerContext)`: gets what `ctx.wake` has set.

        ```python
        from apc_contracts import Packet, SignalPayload


        @desk.on(Question)
        async def later(question: Question, ctx: HandlerContext) -> None:
            await ctx.wake("remind", after=timedelta(days=2))


        @desk.on_wake("remind")
        async def remind(wake: Packet[SignalPayload], ctx: HandlerContext) -> None:
            ctx.state["reminded"] = True
        ```

        Args:
            key: of the timer; None = those without their own handler.

        Raises:
            AgentInvalid: the function does not fit, or another handles this key already.
        """
        kind: Signal | str = Signal.WAKE if key is None else f"{WAKE_PREFIX}{key}"

        def register(function: HandlerT) -> HandlerT:
            handler = with_dependencies(function, 2)
            check_handler(handler, PacketType.SIGNAL)
            entry = HandlerEntry(handler, PacketType.SIGNAL, kind)
            self._handlers.add(entry, f"on_wake handlers for {key or 'every key'}")
            return function

        return register

    def every(
        self,
        line: str,
        *,
        timezone: str = "UTC",
        name: str | None = None,
        misfire: str = "once",
        members: Iterable[str] = (),
        contract: str = "task",
        deadline: timedelta = timedelta(days=1),
        retries: int = 0,
    ) -> Callable[[HandlerT], HandlerT]:
        """Register `async def handler(tick: Tick, ctx: HandlerContext)`: called at the times of a cron line.

        Each firing opens a session, in which the agent decides, and comes once, however many processes of the agent run
        (docs/how-to/timers.md). The agent needs the right `schedule`.

        ```python
        @desk.every("0 7 * * 1-5", timezone="Europe/Berlin", misfire="once", deadline=timedelta(hours=1))
        async def morning(tick: Tick, ctx: HandlerContext) -> None: ...
        ```

        Args:
            line: minute, hour, day of month, month and day of week, such as `0 7 * * 1-5`.
            timezone: in which the line is read, such as `Europe/Berlin`.
            name: of the schedule, unique in the agent; default the function's.
            misfire: what comes of firings at which no process ran: `skip` none, `once` the newest, `all` each.
            members: other agents that take part in the sessions.
            contract: of the sessions; one of the coordinator `task`.
            deadline: of each session.
            retries: as of `on`.

        Raises:
            AgentInvalid: the function does not fit, the line or the zone is none, or the line never fires.
        """
        check_retries(retries)

        def register(function: HandlerT) -> HandlerT:
            called = name or str(getattr(function, "__name__", ""))
            options = ScheduleOptions(timezone, misfire, tuple(members), contract, deadline)
            schedule = make_schedule(self.agent_id, called, line, options)
            handler = tick_handler(self.agent_id, function)
            entry = HandlerEntry(handler, PacketType.MESSAGE, f"{TICK_PREFIX}{called}", retries=retries)
            self._handlers.add(entry, f"schedules {called!r}")
            self.schedules[called] = schedule
            self.rights |= {Right.SCHEDULE}
            return function

        return register


def check_retries(retries: int) -> None:
    """Raise AgentInvalid for a number of retries that no packet may have."""
    if not 0 <= retries <= MAX_RETRY_LIMIT:
        raise AgentInvalid(f"retries {retries} is outside 0..{MAX_RETRY_LIMIT}")


class Agent(TimedHandlers):
    """An agent and its handlers.

    ```python
    desk = Agent("desk", role="desk", swarm="support", concurrency=4, capabilities=["english"])


    @desk.on(Question, retries=2)
    async def reply(question: Question, ctx: HandlerContext) -> Answer:
        return Answer(text=question.text.upper())


    async with AgentTestClient(desk) as client:
        packet = await client.send(Question(text="why"))
    assert content_of(packet, Answer) == Answer(text="WHY")
    ```

    Args:
        agent_id: unique in a deployment.
        role: as registered by the operator.
        swarm: the swarm it belongs to, as registered.
        rights: what it needs from the operator (`apc up` registers it with these; over RabbitMQ
            `apc agent add` does).
        concurrency: how many sessions it handles at once. Packets of one session are handled one after the
            other, in the order of its queues.
        model_id: the model behind the agent, told in every packet it sends.
        capabilities: told in every packet it sends.
        tools: what its actions may use, a ToolRegistry of `apc_minds.tools`; its workers then run its tasks.
        clearance: how far each sender may lead its actions; default `user` for the own swarm and `public` for others.
        security_level: the highest at which its actions and its tasks may run.
        middlewares: FastStream middlewares around the handling of each packet, the first one outermost. They see the
            packet before its handler and its end afterwards; they cannot acknowledge it.
        runs: where its handlers run on a host of many agents (`apc serve agents`): in the event `loop` that all of its
            agents share; in a `thread` of the agent, for code that blocks; or in a child `process`, for code that
            needs much CPU or may crash. Its on_start runs there too, beside the host's own. `apc worker` is a process
            of one agent anyway.

    Raises:
        AgentInvalid: an id that the contract refuses, an unknown right, a concurrency below 1, an unknown `runs`.
    """

    def __init__(
        self,
        agent_id: str,
        *,
        role: str,
        swarm: str,
        rights: Iterable[str] = (),
        concurrency: int = 1,
        model_id: str | None = None,
        capabilities: Iterable[str] = (),
        tools: Tools | None = None,
        clearance: Clearance | None = None,
        security_level: SecurityLevel = SecurityLevel.USER,
        middlewares: Iterable[Callable[..., Any]] = (),
        runs: Runs = "loop",
    ) -> None:
        _check_id("agent_id", agent_id)
        _check_id("swarm", swarm)
        if agent_id.startswith("_") or agent_id == ORCHESTRATOR:
            raise AgentInvalid(f"agent_id {agent_id!r} is reserved: choose another")
        if not role:
            raise AgentInvalid(f"agent {agent_id} has no role: give one")
        if concurrency < 1:
            raise AgentInvalid(f"agent {agent_id} has concurrency {concurrency}: at least 1 is needed")
        if runs not in get_args(Runs):
            raise AgentInvalid(f"agent {agent_id} runs {runs!r}: it is one of 'loop', 'thread' and 'process'")
        self.agent_id = agent_id
        self.role = role
        self.swarm = swarm
        self.rights = _rights(agent_id, rights)
        self.concurrency = concurrency
        self.tools = tools
        self.clearance = clearance or Clearance(swarms={swarm: SecurityLevel.USER})
        self.security_level = security_level
        self.middlewares = tuple(middlewares)
        self.runs = runs
        names = tuple(capabilities)
        self.actor = Actor(agent_id=agent_id, role=role, swarm_id=swarm, model_id=model_id, capabilities=names or None)
        self.starters: list[AnyHandler] = []
        self.refused_handler: AnyHandler | None = None
        self.substrate_handler: AnyHandler | None = None
        self.may_crash = False
        self.schedules = {}
        self._handlers = HandlerTable(agent_id)

    def on(
        self,
        packet_type: PacketType | type[BaseModel],
        *,
        signal: Signal | None = None,
        may_crash: bool = False,
        min_relevance: float | None = None,
        retries: int = 0,
    ) -> Callable[[HandlerT], HandlerT]:
        """Register a handler: of a packet type, or of a model that is decorated with `@message`.

        It is `async def handler(packet: Packet[XPayload], ctx: HandlerContext)`, or for a model
        `async def handler(content: Model, ctx: HandlerContext)`. What it returns (a payload or a model, several of
        them, or None) is emitted to the packet's sender.

        ```python
        @desk.on(Question, retries=2)
        async def reply(question: Question, ctx: HandlerContext) -> Answer: ...
        ```

        Args:
            packet_type: the type or the model it handles; one function may be registered for several types.
            signal: for SIGNAL and HEARTBEAT, only this signal; None = those without their own handler.
            may_crash: the handler may take the process down (native code, memory): the worker then takes
                one packet at a time from the broker, so that a crash counts against no other packet.
            min_relevance: 0..1; a packet whose `evaluate_relevance` is below is not handled. Its outcome is reported
                like any other, with the score in the receipt's `error`, and an ACK is sent where one is asked for.
            retries: 0..10; how often the orchestrator is asked for another attempt, each later than the one before,
                when the handler raises what is neither Retry nor Reject. After them, and at once with 0, the sender
                gets an ERROR and the delivery is a dead letter. The packet's retry_limit bounds them too.

        Raises:
            AgentInvalid: the function does not fit, or another handles this already; a number out of its range.
        """
        if signal is not None and packet_type not in (PacketType.SIGNAL, PacketType.HEARTBEAT):
            raise AgentInvalid(f"{packet_type} has no signal: give signal= with PacketType.SIGNAL only")

        if min_relevance is not None and not 0 <= min_relevance <= 1:
            raise AgentInvalid(f"min_relevance {min_relevance} is outside 0..1")
        check_retries(retries)

        def register(function: HandlerT) -> HandlerT:
            handler, wire_type, kind = handler_for(function, packet_type, signal)
            entry = HandlerEntry(handler, wire_type, kind, min_relevance, retries)
            self._handlers.add(entry, f"handlers for {wire_type} {kind or ''}".rstrip())
            self.may_crash = self.may_crash or may_crash
            return function

        return register

    def on_start(self, function: HandlerT) -> HandlerT:
        """Register `async def begin(ctx: HandlerContext)`: runs once when a worker starts, before any handler.

        ```python
        @desk.on_start
        async def begin(ctx: HandlerContext) -> None:
            ctx.state["starts"] = ctx.state.get("starts", 0) + 1  # the agent's own state, of no session
        ```

        Raises:
            AgentInvalid: the function does not fit.
        """
        starter = with_dependencies(function, 1)
        check_start(starter)
        self.starters.append(starter)
        return function

    def on_refused(self, function: HandlerT) -> HandlerT:
        """Register `async def refused(nack: Packet[NackPayload], ctx)`: gets every NACK that no `on` handler takes.

        ```python
        from apc_contracts import NackPayload, Packet


        @desk.on_refused
        async def refused(nack: Packet[NackPayload], ctx: HandlerContext) -> None:
            ctx.state["refused"] = nack.payload.reason
        ```

        Raises:
            AgentInvalid: the function does not fit, or another is registered.
        """
        handler = with_dependencies(function, 2)
        check_handler(handler, PacketType.NACK)
        if self.refused_handler is not None:
            raise AgentInvalid(f"agent {self.agent_id} has two on_refused handlers")
        self.refused_handler = handler
        return function

    def on_substrate(self, function: HandlerT) -> HandlerT:
        """Register `async def heard(packet: Packet, ctx: HandlerContext)`: gets what others send to the substrate.

        A worker reads the stream from the moment it starts; what was sent before, or while none ran, is not handled
        (`apc packet substrate` shows it). A handler that fails is logged and not tried again, and nobody is told.

        ```python
        from apc_contracts import Packet


        @desk.on_substrate
        async def heard(packet: Packet, ctx: HandlerContext) -> None:
            ctx.state["heard"] = ctx.state.get("heard", 0) + 1
        ```

        Raises:
            AgentInvalid: the function does not fit, or another is registered.
        """
        listener = with_dependencies(function, 2)
        check_listener(listener)
        if self.substrate_handler is not None:
            raise AgentInvalid(f"agent {self.agent_id} has two on_substrate handlers")
        self.substrate_handler = listener
        return function

    @property
    def handles(self) -> frozenset[PacketType]:
        """The packet types with a handler; the control types come in any case."""
        return frozenset(packet_type for packet_type, _ in self._handlers.entries)

    @property
    def schemas(self) -> frozenset[str]:
        """The schemas whose MESSAGEs it takes: those of its models, or all, when it handles the packet type MESSAGE."""
        taken = self._handlers.schemas
        return frozenset({ANY_SCHEMA}) if None in taken else frozenset(filter(None, taken))

    @property
    def models(self) -> frozenset[type[BaseModel]]:
        """The decorated models that its handlers take, return, or may emit, because their modules know them."""
        functions = [*self.starters, *(entry.function for entry in self._handlers.entries.values())]
        return frozenset().union(*map(models_of, functions))

    @property
    def handlers(self) -> Mapping[tuple[PacketType, Kind], HandlerEntry]:
        """Every registered handler by its packet type and its kind."""
        return self._handlers.entries

    def evaluate_relevance(self, message: ContextMessage, context: AgentContext) -> float:
        """Return the Symbolic Resonance Score of a message in a context, 0..1 (docs/reference/agent-context.md)."""
        able = {*(self.tools.tools if self.tools is not None else ()), *(self.actor.capabilities or ())}
        mind = require_mind("the relevance of a message")
        return mind.relevance(message, context, self._relevance, language=self._language, actions=able)

    @cached_property
    def _relevance(self) -> "RelevanceSettings":
        """The weights of relevance, read once, when the first message is weighed."""
        from apc_bus.settings import RelevanceSettings

        return RelevanceSettings()

    @cached_property
    def _language(self) -> str:
        """The language of relevance, read together with its weights."""
        from apc_bus.settings import LanguageSettings

        return LanguageSettings().language

    def min_relevance_for(self, packet: Packet) -> float | None:
        """Return the score below which this packet is not handled; None = it is always handled."""
        entry = self._handlers.find(packet)
        return None if entry is None else entry.min_relevance

    def retries_for(self, packet: Packet) -> int:
        """Return how often this packet is tried again when its handler raises."""
        entry = self._handlers.find(packet)
        return 0 if entry is None else entry.retries

    def handler_for(self, packet: Packet) -> AnyHandler | None:
        """Return the function that takes this packet, None when there is none."""
        entry = self._handlers.find(packet)
        if entry is not None:
            return entry.function
        return self.refused_handler if packet.packet_type is PacketType.NACK else None

    def registration(self, broker_user: str | None = None) -> Registration:
        """Return what an operator registers for this agent; default for `broker_user` is `agent.<agent_id>`."""
        return Registration(
            agent_id=self.agent_id,
            broker_user=broker_user or f"agent.{self.agent_id}",
            role=self.role,
            swarm_id=self.swarm,
            rights=self.rights,
            handles=self.handles - CONTROL_TYPES,
            schemas=self.schemas,
            speaks=SPEAKS_ALL,
        )

    def queues(self, broker_user: str | None = None) -> "AgentQueues":
        """Return the agent's inbox, for `build_topology`; `broker_user` as in `registration`."""
        from apc_bus.topology import AgentQueues

        return AgentQueues(self.agent_id, self.swarm, self.handles - CONTROL_TYPES, broker_user)


def _check_id(what: str, value: str) -> None:
    if not re.match(ID_PATTERN, value):
        raise AgentInvalid(f"{what} {value!r} is no id: 1 to 64 letters, digits, '.', '_', ':' or '-'")


def _rights(agent_id: str, rights: Iterable[str]) -> frozenset[Right]:
    try:
        return frozenset(Right(right) for right in rights)
    except ValueError as error:
        known = ", ".join(right.value for right in Right)
        raise AgentInvalid(f"agent {agent_id}: {error}; the rights are {known}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What all runs of the handlers of a worker share."""

    agent: Agent
    emitter: "Emitter"
    effects: "EffectMaker"
    memory_store: BaseMemoryStore | None
    """None where no mind is installed."""
    artifacts: "ArtifactStore | None" = None
    tasks: "TaskStore | None" = None

    @property
    def memory(self) -> BaseMemoryStore:
        """The memory. Raises AgentError where no mind is installed."""
        if self.memory_store is None:
            raise without_mind("ctx.memory")
        return self.memory_store

"""An agent: who it is and which function handles which packets. Pure description; a Worker runs it."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from pydantic import BaseModel

from apc_agents.agent_context.relevance import resonance
from apc_agents.clearance import Clearance
from apc_agents.errors import AgentInvalid
from apc_agents.signature import AnyHandler, check_handler, check_listener, check_start
from apc_agents.tools.tool_registry import ToolRegistry
from apc_agents.typed.handlers import models_of, schema_handled, typed_handler
from apc_bus.settings import LanguageSettings, RelevanceSettings
from apc_bus.topology import AgentQueues
from apc_contracts.agent.actions import SecurityLevel
from apc_contracts.agent.context import AgentContext, ContextMessage
from apc_contracts.contract_model import ID_PATTERN
from apc_contracts.envelope.packet import Actor, Packet
from apc_contracts.envelope.parts import MAX_RETRY_LIMIT
from apc_contracts.identity.registry import ANY_SCHEMA, Registration, Right
from apc_contracts.payloads.by_type import MessagePayload, SignalFields, SignalPayload
from apc_contracts.vocabulary import CONTROL_TYPES, ORCHESTRATOR, PacketType, Signal

WAKE_PREFIX = "wake:"
"""Before the key of a timer, in the kind of the handler that takes it."""

HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True, slots=True)
class HandlerEntry:
    """A registered handler."""

    function: AnyHandler
    packet_type: PacketType
    kind: Signal | str | None = None
    """The signal, or the schema of a MESSAGE; None = those without their own handler."""
    min_relevance: float | None = None
    retries: int = 0


class Agent:
    """An agent and its handlers.

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
        tools: what its actions may use; its workers then run its tasks.
        clearance: how far each sender may lead its actions; default `user` for the own swarm and `public` for others.
        security_level: the highest at which its actions and its tasks may run.
        middlewares: FastStream middlewares around the handling of each packet, the first one outermost. They see the
            packet before its handler and its end afterwards; they cannot acknowledge it.

    Raises:
        AgentInvalid: an id that the contract refuses, an unknown right, a concurrency below 1.
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
        tools: ToolRegistry | None = None,
        clearance: Clearance | None = None,
        security_level: SecurityLevel = SecurityLevel.USER,
        middlewares: Iterable[Callable[..., Any]] = (),
    ) -> None:
        _check_id("agent_id", agent_id)
        _check_id("swarm", swarm)
        if agent_id.startswith("_") or agent_id == ORCHESTRATOR:
            raise AgentInvalid(f"agent_id {agent_id!r} is reserved: choose another")
        if not role:
            raise AgentInvalid(f"agent {agent_id} has no role: give one")
        if concurrency < 1:
            raise AgentInvalid(f"agent {agent_id} has concurrency {concurrency}: at least 1 is needed")
        self.agent_id = agent_id
        self.role = role
        self.swarm = swarm
        self.rights = _rights(agent_id, rights)
        self.concurrency = concurrency
        self.tools = tools
        self.clearance = clearance or Clearance(swarms={swarm: SecurityLevel.USER})
        self.security_level = security_level
        self.middlewares = tuple(middlewares)
        names = tuple(capabilities)
        self.actor = Actor(agent_id=agent_id, role=role, swarm_id=swarm, model_id=model_id, capabilities=names or None)
        self.starters: list[AnyHandler] = []
        self.refused_handler: AnyHandler | None = None
        self.substrate_handler: AnyHandler | None = None
        self.may_crash = False
        self._handlers: dict[tuple[PacketType, Signal | str | None], HandlerEntry] = {}

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

        Args:
            packet_type: the type or the model it handles; one function may be registered for several types.
            signal: for SIGNAL and HEARTBEAT, only this signal; None = those without their own handler.
            may_crash: the handler may take the process down (native code, memory): the worker then takes
                one packet at a time from the broker, so that a crash counts against no other packet.
            min_relevance: 0..1; a packet whose `evaluate_relevance` is below is not handled. Its outcome is reported
                like any other, with the score in the receipt's `error`, and an ACK is sent where one is asked for.

            retries: 0..10; how often the gate is asked for another attempt, each later than the one before, when the
                handler raises what is neither Retry nor Reject. After them, and at once with 0, the sender gets an
                ERROR and the delivery is a dead letter. The packet's retry_limit bounds them too.

        Raises:
            AgentInvalid: the function does not fit, or another handles this already; a number out of its range.
        """
        if signal is not None and packet_type not in (PacketType.SIGNAL, PacketType.HEARTBEAT):
            raise AgentInvalid(f"{packet_type} has no signal: give signal= with PacketType.SIGNAL only")

        if min_relevance is not None and not 0 <= min_relevance <= 1:
            raise AgentInvalid(f"min_relevance {min_relevance} is outside 0..1")
        if not 0 <= retries <= MAX_RETRY_LIMIT:
            raise AgentInvalid(f"retries {retries} is outside 0..{MAX_RETRY_LIMIT}")

        def register(function: HandlerT) -> HandlerT:
            handler, wire_type, kind = _handler_for(function, packet_type, signal)
            if (wire_type, kind) in self._handlers:
                raise AgentInvalid(f"agent {self.agent_id} has two handlers for {wire_type} {kind or ''}".rstrip())
            self._handlers[wire_type, kind] = HandlerEntry(handler, wire_type, kind, min_relevance, retries)
            self.may_crash = self.may_crash or may_crash
            return function

        return register

    def on_start(self, function: HandlerT) -> HandlerT:
        """Register `async def begin(ctx: HandlerContext)`: runs once when a worker starts, before any handler."""
        check_start(function)
        self.starters.append(function)
        return function

    def on_refused(self, function: HandlerT) -> HandlerT:
        """Register `async def refused(nack: Packet[NackPayload], ctx)`: gets every NACK that no `on` handler takes."""
        check_handler(function, PacketType.NACK)
        if self.refused_handler is not None:
            raise AgentInvalid(f"agent {self.agent_id} has two on_refused handlers")
        self.refused_handler = function
        return function

    def on_substrate(self, function: HandlerT) -> HandlerT:
        """Register `async def heard(packet: Packet, ctx: HandlerContext)`: gets what others send to the substrate.

        A worker reads the stream from the moment it starts; what was sent before, or while none ran, is not handled
        (`apc packet substrate` shows it). A handler that fails is logged and not tried again, and nobody is told.

        Raises:
            AgentInvalid: the function does not fit, or another is registered.
        """
        check_listener(function)
        if self.substrate_handler is not None:
            raise AgentInvalid(f"agent {self.agent_id} has two on_substrate handlers")
        self.substrate_handler = function
        return function

    def on_wake(self, key: str | None = None) -> Callable[[HandlerT], HandlerT]:
        """Register `async def woken(wake: Packet[SignalPayload], ctx: HandlerContext)`: gets what `ctx.wake` has set.

        Args:
            key: of the timer; None = those without their own handler.

        Raises:
            AgentInvalid: the function does not fit, or another handles this key already.
        """
        kind: Signal | str = Signal.WAKE if key is None else f"{WAKE_PREFIX}{key}"

        def register(function: HandlerT) -> HandlerT:
            check_handler(function, PacketType.SIGNAL)
            if (PacketType.SIGNAL, kind) in self._handlers:
                raise AgentInvalid(f"agent {self.agent_id} has two on_wake handlers for {key or 'every key'}")
            self._handlers[PacketType.SIGNAL, kind] = HandlerEntry(function, PacketType.SIGNAL, kind)
            return function

        return register

    @property
    def handles(self) -> frozenset[PacketType]:
        """The packet types with a handler; the control types come in any case."""
        return frozenset(packet_type for packet_type, _ in self._handlers)

    @property
    def schemas(self) -> frozenset[str]:
        """The schemas whose MESSAGEs it takes: those of its models, or all, when it handles the packet type MESSAGE."""
        kinds = {kind for packet_type, kind in self._handlers if packet_type is PacketType.MESSAGE}
        return frozenset({ANY_SCHEMA}) if None in kinds else frozenset(map(str, kinds))

    @property
    def models(self) -> frozenset[type[BaseModel]]:
        """The decorated models that its handlers take, return, or may emit, because their modules know them."""
        functions = [*self.starters, *(entry.function for entry in self._handlers.values())]
        return frozenset().union(*map(models_of, functions))

    @property
    def handlers(self) -> Mapping[tuple[PacketType, Signal | str | None], HandlerEntry]:
        """Every registered handler by its packet type and its signal or schema."""
        return self._handlers

    def evaluate_relevance(self, message: ContextMessage, context: AgentContext) -> float:
        """Return the Symbolic Resonance Score of a message in a context, 0..1 (docs/reference/agent-context.md)."""
        able = {*(self.tools.tools if self.tools is not None else ()), *(self.actor.capabilities or ())}
        parts = resonance(message, context, self._relevance, language=self._language, actions=able)
        return parts.score(self._relevance)

    @cached_property
    def _relevance(self) -> RelevanceSettings:
        """Read once, when a message is weighed first."""
        return RelevanceSettings()

    @cached_property
    def _language(self) -> str:
        """Read with the weights."""
        return LanguageSettings().language

    def min_relevance_for(self, packet: Packet) -> float | None:
        """Return the score below which this packet is not handled; None = it is always handled."""
        entry = self._entry_for(packet)
        return None if entry is None else entry.min_relevance

    def retries_for(self, packet: Packet) -> int:
        """Return how often this packet is tried again when its handler raises."""
        entry = self._entry_for(packet)
        return 0 if entry is None else entry.retries

    def handler_for(self, packet: Packet) -> AnyHandler | None:
        """Return the function that takes this packet, None when there is none."""
        entry = self._entry_for(packet)
        if entry is not None:
            return entry.function
        return self.refused_handler if packet.packet_type is PacketType.NACK else None

    def _entry_for(self, packet: Packet) -> HandlerEntry | None:
        packet_type = packet.packet_type
        entry = None
        if packet_type in (PacketType.SIGNAL, PacketType.HEARTBEAT):
            return self._entry_for_signal(packet_type, packet.payload_as(SignalFields))
        elif packet_type is PacketType.MESSAGE:
            entry = self._handlers.get((packet_type, packet.payload_as(MessagePayload).schema_id))
        return entry or self._handlers.get((packet_type, None))

    def _entry_for_signal(self, packet_type: PacketType, payload: SignalFields) -> HandlerEntry | None:
        entry = None
        if isinstance(payload, SignalPayload) and payload.request is not None:
            return self._handlers.get((PacketType.MESSAGE, payload.request.schema_id))
        if isinstance(payload, SignalPayload) and payload.wake is not None:
            entry = self._handlers.get((packet_type, f"{WAKE_PREFIX}{payload.wake.key}"))
        return entry or self._handlers.get((packet_type, payload.signal)) or self._handlers.get((packet_type, None))

    def registration(self, broker_user: str | None = None) -> Registration:
        """Return what an operator registers for this agent; the broker user is by convention `agent.<agent_id>`."""
        return Registration(
            agent_id=self.agent_id,
            broker_user=broker_user or f"agent.{self.agent_id}",
            role=self.role,
            swarm_id=self.swarm,
            rights=self.rights,
            handles=self.handles - CONTROL_TYPES,
            schemas=self.schemas,
        )

    def queues(self, broker_user: str | None = None) -> AgentQueues:
        """Return the agent's inbox, for `build_topology`; the broker user as in `registration`."""
        return AgentQueues(self.agent_id, self.swarm, self.handles - CONTROL_TYPES, broker_user)


def _handler_for(
    function: AnyHandler, taken: PacketType | type[BaseModel], signal: Signal | None
) -> tuple[AnyHandler, PacketType, Signal | str | None]:
    """Return what a worker calls for a packet, and what it is registered for."""
    if isinstance(taken, PacketType):
        check_handler(function, taken)
        return function, taken, signal
    if not (isinstance(taken, type) and issubclass(taken, BaseModel)):
        raise AgentInvalid(f"@agent.on takes a PacketType or a model that is decorated with @message, not {taken!r}")
    schema_id = schema_handled(taken)
    return typed_handler(function, taken), PacketType.MESSAGE, schema_id


def _check_id(what: str, value: str) -> None:
    if not re.match(ID_PATTERN, value):
        raise AgentInvalid(f"{what} {value!r} is no id: 1 to 64 letters, digits, '.', '_', ':' or '-'")


def _rights(agent_id: str, rights: Iterable[str]) -> frozenset[Right]:
    try:
        return frozenset(Right(right) for right in rights)
    except ValueError as error:
        known = ", ".join(right.value for right in Right)
        raise AgentInvalid(f"agent {agent_id}: {error}; the rights are {known}") from error

"""The handlers of an agent: which one takes a packet."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from apc_agents.errors import AgentInvalid
from apc_agents.scheduling.schedule import TICK_SCHEMA
from apc_agents.signature import AnyHandler, check_handler
from apc_agents.typed.handlers import schema_handled, typed_handler
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import MessagePayload, SignalFields, SignalPayload
from apc_contracts.vocabulary import PacketType, Signal

WAKE_PREFIX = "wake:"
"""Before the key of a timer, in the kind of the handler that takes it."""
TICK_PREFIX = "tick:"
"""Before the name of a schedule, in the kind of the handler that takes its Ticks."""

Kind = Signal | str | None


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

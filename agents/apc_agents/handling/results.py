"""The handlers of packets for which an agent has none."""

import structlog

from apc_agents.errors import Reject
from apc_agents.handling.handler_context import HandlerContext
from apc_agents.signature import AnyHandler
from apc_contracts.admission.rules.routing import request_of
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.vocabulary import CONTROL_TYPES

_log = structlog.get_logger("apc_agents")


def default_handler(packet: Packet) -> AnyHandler:
    """Return what handles a packet for which the agent has no handler."""
    if request_of(packet) is not None:
        return _refuse
    return _accept if packet.packet_type in CONTROL_TYPES else _refuse


async def _accept(packet: Packet, context: HandlerContext) -> None:
    """Accept control types without a handler: the SDK has used them already."""
    payload = packet.payload
    if isinstance(payload, SignalPayload) and payload.wake is not None:
        _log.warning("wake_without_handler", agent_id=context.agent.agent_id, key=payload.wake.key)


async def _refuse(packet: Packet, context: HandlerContext) -> None:
    request = request_of(packet)
    what = packet.packet_type if request is None else f"requests of {request.schema_id}"
    raise Reject(f"{context.agent.agent_id} has no handler for {what}")

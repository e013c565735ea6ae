"""The handlers of packets for which an agent has none."""

from apc_agents.errors import Reject
from apc_agents.handling.handler_context import HandlerContext
from apc_agents.signature import AnyHandler
from apc_contracts.envelope.packet import Packet
from apc_contracts.vocabulary import CONTROL_TYPES


def default_handler(packet: Packet) -> AnyHandler:
    """Return what handles a packet for which the agent has no handler."""
    return _accept if packet.packet_type in CONTROL_TYPES else _refuse


async def _accept(packet: Packet, context: HandlerContext) -> None:
    """Accept control types without a handler: the SDK has used them already."""


async def _refuse(packet: Packet, context: HandlerContext) -> None:
    raise Reject(f"{context.agent.agent_id} has no handler for {packet.packet_type}")

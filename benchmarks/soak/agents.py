"""The agents that are killed in mid-handler: what they did is in their state, saved once with the packet's id."""

from tests.support.traffic.packets import ROLE

from apc_agents import Agent, HandlerContext
from apc_contracts import IdeaPayload, Packet, PacketType
from apc_contracts.payloads.by_type import ErrorPayload, SignalPayload
from benchmarks.soak.cast import CAST, COLLECTOR, POISON, WORKERS, idea

HANDLED = "handled"
"""Key of the state: the packets whose handler ran to its end, each as often as it did."""


def _note(packet_id: object, context: HandlerContext) -> None:
    context.state.setdefault(HANDLED, []).append(str(packet_id))


def _agent(agent_id: str) -> Agent:
    agent = Agent(agent_id, role=ROLE, swarm=CAST[agent_id][0])

    @agent.on(PacketType.SIGNAL)
    async def note(packet: Packet[SignalPayload], context: HandlerContext) -> None:
        _note(packet.packet_id, context)

    @agent.on(PacketType.ERROR)
    async def note_error(packet: Packet[ErrorPayload], context: HandlerContext) -> None:
        _note(packet.packet_id, context)

    return agent


def _worker(agent_id: str) -> Agent:
    agent = _agent(agent_id)

    @agent.on(PacketType.IDEA)
    async def work(packet: Packet[IdeaPayload], context: HandlerContext) -> None:
        if packet.payload.intent == POISON:
            raise ValueError("poison")
        _note(packet.packet_id, context)
        answer = idea(f"{agent_id}-{packet.packet_id}", "answer")
        await context.emit(answer, to=COLLECTOR, symbolic_keys=(answer.method_id,))

    return agent


worker_1, worker_2, worker_3 = map(_worker, WORKERS)
collector = _agent(COLLECTOR)


@collector.on(PacketType.IDEA)
async def collect(packet: Packet[IdeaPayload], context: HandlerContext) -> None:
    """Take the answers."""
    _note(packet.packet_id, context)

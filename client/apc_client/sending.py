"""Send a packet on behalf of an agent, and read the gate's verdict."""

from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from apc_agents.keys import AgentKey, find_key
from apc_bus import headers
from apc_bus.port import ActPublisher, Message, Publication
from apc_bus.settings import WorkerSettings
from apc_bus.topology import INGRESS
from apc_client.waiting import until
from apc_contracts.envelope.packet import Packet
from apc_contracts.identity.ids import shard_of
from apc_contracts.wire.sealing import seal
from apc_log.queries.answers import read_verdicts
from apc_web.errors import ServiceAway

PATIENCE = timedelta(seconds=8)


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """The gate's verdict: `accepted`, `refused` or `held`, and why it was refused: code, place and words."""

    verdict: str
    code: str | None = None
    path: str | None = None
    message: str | None = None

    @property
    def reason(self) -> str | None:
        """Why it was refused, in one sentence; None when it was not."""
        if self.code is None:
            return None
        place = f"{self.code} at {self.path}: " if self.path is not None else ""
        return f"{place}{self.message}"


async def send_packet(
    bus: ActPublisher, pool: asyncpg.Pool, packet: Packet, shards: int, key: AgentKey | None = None
) -> GateAnswer:
    """Send as the broker user of this bus, signed with the key; return the gate's verdict.

    Without a key it is signed as the sender's worker here would sign.

    Raises:
        ServiceAway: the verdict did not come in time; the packet waits in the gate's queue.
        BusError: the broker did not take it.
        PacketRefused: it is too large.
        AgentKeyUnusable: the sender's key cannot be read.
    """
    await _publish(bus, packet, shards, key)
    return await answer_to(pool, packet, bus.user)


async def _publish(bus: ActPublisher, packet: Packet, shards: int, key: AgentKey | None) -> None:
    trace, sealed = packet.trace, seal(packet)
    key = key or find_key(WorkerSettings(), packet.sender.agent_id)
    message = Message(
        sealed.body,
        str(packet.packet_id),
        type=packet.packet_type.value,
        correlation_id=str(trace.root_packet_id),
        user_id=bus.user,
        headers={} if key is None else {headers.SIGNATURE: key.sign(sealed)},
    )
    await bus.publish(Publication(INGRESS, str(shard_of(trace.session_id, shards)), message))


async def answer_to(pool: asyncpg.Pool, packet: Packet, user: str, patience: timedelta = PATIENCE) -> GateAnswer:
    """Return the gate's verdict on a packet that this broker user published, once the log has it.

    Raises:
        ServiceAway: not within `patience`; the packet waits in the gate's queue.
    """
    found: list[asyncpg.Record] = []

    async def is_judged() -> bool:
        session_id, sender = packet.trace.session_id, packet.sender.agent_id
        found[:] = await read_verdicts(pool, session_id, packet.packet_id, sender, user)
        return bool(found)

    try:
        await until(is_judged, patience)
    except TimeoutError as error:
        raise ServiceAway(
            f"the packet was sent, but is not in the log after {patience.total_seconds():g} s: do `apc serve "
            "orchestrator` and `apc serve persister` run? It is judged as soon as they do"
        ) from error
    row = found[0]
    return GateAnswer(row["verdict"], row["code"], row["path"], row["message"])

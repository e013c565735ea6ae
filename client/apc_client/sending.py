"""Send a packet on behalf of an agent, and read the gate's verdict."""

from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from apc_agents.keys import AgentKey, find_key
from apc_bus import headers
from apc_bus.port import ActPublisher, Bus, HeaderValue, Message, Publication
from apc_bus.settings import WorkerSettings
from apc_bus.topology import INGRESS
from apc_client.waiting import until
from apc_contracts.envelope.packet import Packet
from apc_contracts.identity.ids import shard_of
from apc_contracts.wire.sealing import seal
from apc_log.queries.questions import read_verdicts
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
    await bus.publish(_publication(packet, shards, _message(bus.user, packet, key)))
    return await answer_to(pool, packet, bus.user)


async def send_opening(
    bus: Bus, pool: asyncpg.Pool, start: Packet | None, work: Packet, shards: int, key: AgentKey | None = None
) -> GateAnswer:
    """Send the work of a session and the START before it, in one message; return the first refusal, or the last answer.

    Both are written before either is sent, so that nothing is opened for work that nobody could take. If the gate
    refuses the work, it halts the session.

    Args:
        start: None = the session is open and has no work yet.

    Raises as `send_packet`.
    """
    packets = [work] if start is None else [start, work]
    messages = [_message(bus.user, packet, key, is_opening=packet is work) for packet in packets]
    await bus.publish(_publication(work, shards, *messages))
    answers = [await answer_to(pool, packets[0], bus.user)]
    if answers[0].code is None and start is not None:
        answers.append(await answer_to(pool, work, bus.user))
    return answers[-1]


def _publication(packet: Packet, shards: int, message: Message, *following: Message) -> Publication:
    return Publication(INGRESS, str(shard_of(packet.trace.session_id, shards)), message, following)


def _message(user: str, packet: Packet, key: AgentKey | None, *, is_opening: bool = False) -> Message:
    sealed = seal(packet)
    key = key or find_key(WorkerSettings(), packet.sender.agent_id)
    values: dict[str, HeaderValue] = {} if key is None else {headers.SIGNATURE: key.sign(sealed)}
    if is_opening:
        values[headers.OPENING] = True
    return Message(
        sealed.body,
        str(packet.packet_id),
        type=packet.packet_type.value,
        correlation_id=str(packet.trace.root_packet_id),
        user_id=user,
        headers=values,
    )


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

"""What `apc agent list` and `apc doctor` say of agents and dead letters, from a log with both."""

from datetime import UTC, datetime
from typing import Any

from tests.integration.conftest import House
from tests.support.traffic import make_idea, make_packet, until

from apc_bus.port import QueueDepth
from apc_bus.topology import agent_queue
from apc_cli.commands.agent import listed
from apc_cli.doctor import Finding, Status
from apc_cli.doctor.agents import look_at_agents, look_at_dead_letters
from apc_contracts import HeartbeatPayload, ReceiptKind, Signal
from apc_contracts.vocabulary import PRESENCE_SESSION
from apc_log.queries.agents import ALIVE_WITHIN


def depths(agent: str, messages: int, consumers: int) -> dict[str, QueueDepth]:
    """Return what the broker would say of an agent's queues."""
    return {agent_queue(agent, urgent): QueueDepth(messages, consumers) for urgent in (True, False)}


async def one(house: House, agent: str, now: datetime | None = None) -> dict[str, Any]:
    """Return an agent's row."""
    rows = {row["agent_id"]: row for row in await listed(house.pool, now or datetime.now(UTC))}
    return rows[agent]


async def test_alive_open_and_dead(house: House) -> None:
    async with house.persister(), house.gate():
        await house.open_session()

        async def is_heard() -> bool:
            return bool((await one(house, "sentinel"))["is_alive"])

        await until(is_heard)
        began = await one(house, "sentinel")
        assert (began["is_alive"], began["open"]) == (True, 0), "it has reported the START"
        assert set(began["rights"]) == {"validate", "veto"}
        assert await look_at_dead_letters(house.pool) == [
            Finding("dead letters", Status.OK, "no delivery is one"),
        ]

        beat = make_packet("sentinel", HeartbeatPayload(signal=Signal.HEARTBEAT), session_id=PRESENCE_SESSION)
        sent = [make_packet("red-1", make_idea(), ("sentinel",), parent=house.opening) for _ in range(3)]
        await house.agents.publish(beat, *sent)
        await until(house.is_logged(*(packet.packet_id for packet in sent)))
        assert (await one(house, "sentinel"))["open"] == 3
        await house.agents.receive("sentinel", 3)
        await house.agents.report("sentinel", [sent[0].packet_id])
        await house.agents.report("sentinel", [sent[1].packet_id], ReceiptKind.DEAD_LETTERED)
        await until(house.has_come_to("ARCHIVED", sent[0].packet_id, "sentinel"))
        await until(house.has_come_to("DEAD_LETTERED", sent[1].packet_id, "sentinel"))

        row = await one(house, "sentinel")
        assert (row["is_alive"], row["open"]) == (True, 1)
        assert not (await one(house, "sentinel", row["last_seen"] + ALIVE_WITHIN))["is_alive"]
        (dead,) = await look_at_dead_letters(house.pool)
        assert dead.status is Status.WARNING
        assert "1 delivery ended as dead letters (1 " in dead.finding
        assert "apc dead-letter" in dead.fix

        (told,) = await look_at_agents(house.pool, {})
        assert told.finding.startswith("nobody consumes the queues of 4 agents: ")
        found = await look_at_agents(
            house.pool, depths("sentinel", 4, 1) | depths("red-1", 4, 1) | depths("blue-1", 4, 0)
        )
        left = {finding.finding.split(":")[0]: finding for finding in found}
        assert set(left) == {"blue-1", "librarian"}
        assert left["blue-1"].finding.startswith("blue-1: nobody consumes its queues; last heard of ")
        assert left["blue-1"].finding.endswith("; 8 packets wait")
        assert left["blue-1"].fix == "start its worker, or `apc agent revoke blue-1`"

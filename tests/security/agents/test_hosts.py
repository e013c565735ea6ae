"""What an agent of a host can do to other hosts, and a packet to agents that it was not sent to."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from tests.security.agents.test_forged_deliveries import TOLD
from tests.support.traffic import make_idea, make_packet
from tests.support.waiting import until

from apc_agents import Agent, HandlerContext, WorkerSettings
from apc_agents.errors import AgentInvalid
from apc_agents.keys import find_key, make_key
from apc_agents.running.host import Host, check_host
from apc_agents.running.service import open_stores
from apc_bus.in_memory import InMemoryBroker
from apc_bus.port import Message, Publication
from apc_bus.rabbit.definitions import permissions
from apc_bus.topology import (
    DEAD_QUEUE,
    INTER_AGENT,
    SUBSTRATE,
    AgentQueues,
    agent_queue,
    build_topology,
    host_key,
    host_queue,
)
from apc_contracts import IdeaPayload, Packet, PacketType, seal

OURS, THEIRS = AgentQueues("a-1", "red", host="ours"), AgentQueues("b-1", "red", host="theirs")
ALONE = AgentQueues("c-1", "red")


@pytest.mark.parametrize("right", [1, 2], ids=["write", "read"])
@pytest.mark.parametrize(
    "name",
    [
        *(INTER_AGENT, SUBSTRATE, "amq.default", host_queue("theirs", True), host_queue("theirs", False)),
        *(agent_queue("c-1", False), "apc.gate.0", "apc.host.oursx.normal"),
    ],
)
def test_a_host_reaches_no_inbox_but_its_own(name: str, right: int) -> None:
    grants = permissions(build_topology(1, [OURS, THEIRS, ALONE]))
    assert re.search(grants["topology"][right], name), "anyone who has this right can do it"
    assert re.search(grants["host.ours"][right], name) is None
    assert grants["host.ours"][0] == "^$", "it declares and binds nothing"


def test_one_key_for_all_agents_of_a_host_is_refused(tmp_path: Path) -> None:
    make_key(tmp_path / "one.pem")
    shared = WorkerSettings(agent_key_file=tmp_path / "one.pem")
    keys = [find_key(shared, name) for name in ("a-1", "a-2")]
    assert keys[0] is not None and keys[1] is not None
    assert keys[0].key_id == keys[1].key_id, "without the refusal each signs as the other"
    with pytest.raises(AgentInvalid, match="would sign for every agent"):
        check_host([], shared)
    check_host([], WorkerSettings(agent_key_file=tmp_path / "{agent_id}.pem"))


async def test_a_packet_for_another_agent_is_handled_by_nobody(tmp_path: Path) -> None:
    """Keys that an attacker could wish for: another agent's, none, one with wildcards, the encoded own one."""
    handled: list[str] = []
    agent = Agent("a-1", role="r", swarm="red")

    @agent.on(PacketType.IDEA)
    async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        handled.append(ctx.agent_id)

    broker = InMemoryBroker(build_topology(1, [OURS]))
    gate = broker.connect("orchestrator")
    settings, stop = WorkerSettings(data_dir=tmp_path, database_url=None), asyncio.Event()

    async def publish(key: str) -> None:
        packet = make_packet("librarian", make_idea(), ("a-1",))
        message = Message(seal(packet).body, str(packet.packet_id), type="IDEA", headers=TOLD)
        await gate.publish(Publication(INTER_AGENT, key, message))

    async with open_stores(settings, 1) as stores:
        host = Host("ours", [agent], broker.connect("host.ours"), stores, settings)
        running = asyncio.create_task(host.run(stop))
        await host.ready.wait()
        keys = ["host.ours.a-2", "host.ours.*", "host.ours.%61-1", "host.ours.A-1", "host.ours.orchestrator"]
        for key in keys:
            await publish(key)
        await until(lambda: len(broker.queue(DEAD_QUEUE)) == len(keys))
        assert handled == []
        await publish(host_key("ours", "a-1", urgent=False))
        await until(lambda: handled == ["a-1"])
        stop.set()
        await running
    assert handled == ["a-1"] and len(broker.queue(DEAD_QUEUE)) == len(keys), "its recipient handles it"


async def test_a_child_process_handles_the_packet_of_its_agent_alone(tmp_path: Path) -> None:
    """A place is chosen by the recipient's id, which the gate has checked, and never by what a packet says."""
    places = {"a-1": "examples.reviewer:agent"}
    asked: list[tuple[str, Any]] = []

    class Risky:
        ends = 1

    agents = [Agent(name, role="r", swarm="red") for name in ("a-1", "a-2")]
    broker = InMemoryBroker(build_topology(1, [OURS]))
    settings = WorkerSettings(data_dir=tmp_path, database_url=None)
    async with open_stores(settings, 1) as stores:
        host = Host("ours", agents, broker.connect("host.ours"), stores, settings, places=places)
        for name in ("a-1", "a-2"):
            asked.append((name, host.runs(name, Risky())))  # type: ignore[arg-type]
        for name in ("../a-1", ""):
            with pytest.raises(KeyError):
                host.runs(name, Risky())  # type: ignore[arg-type]
    assert asked == [("a-1", "process"), ("a-2", "loop")], "the agent itself takes it"

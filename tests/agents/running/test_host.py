"""A host: many agents over one inbox, each as if it were alone."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs
from tests.agents.conftest import MakeIdea, MakePacket
from tests.support.waiting import until

from apc_agents import Agent, HandlerContext, WorkerSettings
from apc_agents.errors import AgentInvalid
from apc_agents.running import host as hosting
from apc_agents.running import worker
from apc_agents.running.host import Host, run_host
from apc_agents.running.service import open_stores
from apc_bus import headers
from apc_bus.consuming import handle
from apc_bus.in_memory import InMemoryBroker
from apc_bus.port import Delivery, HeaderValue, Message, Publication
from apc_bus.settings import BusSettings
from apc_bus.topology import (
    DEAD_QUEUE,
    INTER_AGENT,
    SUBSTRATE,
    SUBSTRATE_STREAM,
    AgentQueues,
    build_topology,
    gate_queue,
    host_key,
    host_queue,
)
from apc_contracts import IdeaPayload, Packet, PacketType, Receipt, ReceiptKind, parse_packet, parse_receipts, seal
from apc_contracts.wire.receipts import steps_of

NORMAL = host_queue("h", urgent=False)


class Street:
    """The other side of a host: puts packets into its inbox, and collects what its agents publish."""

    def __init__(self) -> None:
        self.broker = InMemoryBroker(build_topology(1, [AgentQueues("any", "s", host="h")]))
        self.bus = self.broker.connect("orchestrator")
        self.ends: defaultdict[str, list[tuple[str, ReceiptKind]]] = defaultdict(list)
        """packet_id -> recipient and kind of each receipt."""
        self.packets: list[Packet] = []

    async def deliver(self, packet: Packet, *to: str, urgent: bool = False) -> None:
        """Publish a delivery to each of these agents, as the gate does."""
        told: dict[str, HeaderValue] = {
            headers.SHARD: 0,
            headers.EPOCH: 1,
            headers.BATCH: 1,
            headers.MARK: "0.0",
            headers.ATTEMPT: 1,
        }
        message = Message(seal(packet).body, str(packet.packet_id), type=packet.packet_type.value, headers=told)
        for agent_id in to:
            await self.bus.publish(Publication(INTER_AGENT, host_key("h", agent_id, urgent), message))

    async def collect(self, delivery: Delivery) -> None:
        message, found = delivery.message, list[Receipt]()
        if message.type == headers.TYPE_RECEIPTS:
            found += parse_receipts(message.body)
        else:
            self.packets.append(parse_packet(message.body))
            found += parse_receipts(str(message.headers.get(headers.RECEIPTS, "[]")).encode())
        for merged in found:
            for one in steps_of(merged):
                self.ends[str(one.packet_id)].append((one.recipient, one.kind))

    async def ended(self, packet: Packet, *agents: str, kind: ReceiptKind = ReceiptKind.OUTCOME) -> None:
        """Wait until each of these agents has reported the packet's end."""
        wanted = {(agent_id, kind) for agent_id in agents}
        await until(lambda: wanted <= set(self.ends[str(packet.packet_id)]))


@pytest.fixture
async def street() -> AsyncIterator[Street]:
    street = Street()
    async with handle(street.bus, gate_queue(0), street.collect, prefetch=1):
        yield street


RunHost = Callable[..., AbstractAsyncContextManager[Host]]


@pytest.fixture
def running_host(street: Street, tmp_path: Path) -> RunHost:
    @asynccontextmanager
    async def run(*agents: Agent) -> AsyncIterator[Host]:
        settings = WorkerSettings(data_dir=tmp_path, database_url=None)
        stop = asyncio.Event()
        async with open_stores(settings, 1) as stores:
            host = Host("h", agents, street.broker.connect("host.h"), stores, settings)
            work = asyncio.create_task(host.run(stop))
            try:
                waiting = asyncio.create_task(host.ready.wait())
                await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
                yield host
            finally:
                stop.set()
                await work

    return run


class Crew:
    """Agents that note what they handle."""

    def __init__(self, *names: str) -> None:
        self.handled: list[tuple[str, str]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.agents = [self._make(name) for name in names]

    def _make(self, name: str) -> Agent:
        agent = Agent(name, role="r", swarm="s")

        @agent.on(PacketType.IDEA)
        async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
            if name == "slow":
                await self.go_on.wait()
            self.handled.append((name, idea.payload.method_id))

        return agent


async def test_each_packet_goes_to_the_agent_that_its_key_names(
    street: Street, running_host: RunHost, make_packet: MakePacket, idea: MakeIdea
) -> None:
    crew = Crew("a", "B.c")
    packets = [make_packet(idea(f"m-{number}")) for number in range(4)]
    async with running_host(*crew.agents) as host:
        for number, packet in enumerate(packets):
            await street.deliver(packet, "a" if number % 2 else "B.c", urgent=number > 1)
        for number, packet in enumerate(packets):
            await street.ended(packet, "a" if number % 2 else "B.c")
        assert host.remarks == ["2 of 2 agents run on host h"] and host.problems == []
    assert sorted(crew.handled) == [("B.c", "m-0"), ("B.c", "m-2"), ("a", "m-1"), ("a", "m-3")]
    assert (await street.bus.depth(NORMAL)).messages == 0


async def test_a_packet_to_several_agents_of_a_host_has_a_receipt_of_each(
    street: Street, running_host: RunHost, make_packet: MakePacket, idea: MakeIdea
) -> None:
    """They share an outbox, where receipts of one handling are merged: those of two recipients are not."""
    crew = Crew("a", "b", "c")
    packet = make_packet(idea())
    async with running_host(*crew.agents):
        await street.deliver(packet, "a", "b", "c")
        await street.ended(packet, "a", "b", "c")
    assert len(street.ends[str(packet.packet_id)]) == 9, "three of each: delivered, applied, ended"


async def test_a_host_sends_no_heartbeats(
    street: Street, running_host: RunHost, make_packet: MakePacket, idea: MakeIdea
) -> None:
    crew = Crew("a", "b")
    packet = make_packet(idea())
    async with running_host(*crew.agents):
        await street.deliver(packet, "a")
        await street.ended(packet, "a")
    assert not street.packets


async def test_what_comes_for_an_agent_of_another_host_is_dead_lettered_and_holds_up_nobody(
    street: Street, running_host: RunHost, make_packet: MakePacket, idea: MakeIdea
) -> None:
    crew = Crew("a")
    packet = make_packet(idea())
    with capture_logs() as logs:
        async with running_host(*crew.agents):
            await street.deliver(make_packet(idea()), "stranger")
            await street.deliver(packet, "a")
            await street.ended(packet, "a")
            await until(lambda: len(street.broker.queue(DEAD_QUEUE)) == 1)
    assert [one["routing_key"] for one in logs if one["event"] == "recipient_not_on_host"] == ["host.h.stranger"]


async def test_an_agent_that_does_not_start_holds_up_no_other_and_gets_its_packets_later(
    street: Street, running_host: RunHost, make_packet: MakePacket, idea: MakeIdea, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "FIRST_WAIT", 0.05)
    crew, may_start = Crew("a", "late"), asyncio.Event()

    @crew.agents[1].on_start
    async def start(ctx: HandlerContext) -> None:
        if not may_start.is_set():
            raise ValueError("no model yet")

    first, second = make_packet(idea("first")), make_packet(idea("second"))
    async with running_host(*crew.agents) as host:
        await street.deliver(first, "late", "a")
        await street.ended(first, "a")
        assert host.problems == [] and host.remarks[1:] == ["degraded: 1 do not start: late"]
        may_start.set()
        await street.deliver(second, "late")
        await street.ended(first, "late")
        await street.ended(second, "late")
        assert host.remarks == ["2 of 2 agents run on host h"]
    assert [name for agent, name in crew.handled if agent == "late"] == ["first", "second"], "in their order"


async def test_an_agent_without_packets_has_no_task(
    street: Street, running_host: RunHost, make_packet: MakePacket, idea: MakeIdea
) -> None:
    counts, few, many = [], Crew("a"), Crew(*(f"a{number}" for number in range(20)))
    for crew in (few, many):
        async with running_host(*crew.agents):
            packet = make_packet(idea("m"))
            names = [agent.agent_id for agent in crew.agents]
            await street.deliver(packet, *names)
            await street.ended(packet, *names)
            await until(lambda: not worker.handling)
            counts.append(len(asyncio.all_tasks()))
    assert len(many.handled) == 20 and counts[0] == counts[1]


async def test_an_agent_whose_handlers_task_is_cancelled_is_started_again_and_takes_the_packet_again(
    street: Street, running_host: RunHost, make_packet: MakePacket, idea: MakeIdea, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "FIRST_WAIT", 0.05)
    agent, runs = Agent("a", role="r", swarm="s"), list[str]()

    @agent.on(PacketType.IDEA)
    async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        runs.append(idea.payload.method_id)
        if len(runs) == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    first, second = make_packet(idea("first")), make_packet(idea("second"))
    async with running_host(agent) as host:
        await street.deliver(first, "a")
        await street.deliver(second, "a")
        await street.ended(first, "a")
        await street.ended(second, "a")
        assert host.remarks == ["1 of 1 agents run on host h"]
    assert runs == ["first", "first", "second"]


async def test_a_stuck_agent_is_named_and_only_a_full_host_is_not_ready(
    street: Street, running_host: RunHost, make_packet: MakePacket, idea: MakeIdea, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "STUCK_SECONDS", 0.0)
    crew = Crew("a", "slow")
    crew.go_on.clear()
    packets = [make_packet(idea(f"m-{number}"), session_id=f"s-{number}") for number in range(4)]
    last = make_packet(idea("last"))
    async with running_host(*crew.agents) as host:
        host.inbox._prefetch = 6
        for packet in packets[:3]:
            await street.deliver(packet, "slow")
        await street.deliver(last, "a")
        await street.ended(last, "a")
        await until(lambda: host.inbox.held == 3)  # the gate has a receipt before the host knows that it is confirmed
        assert host.problems == []
        assert host.remarks[1].startswith("degraded: 1 stuck") and host.remarks[1].endswith(": slow")
        await street.deliver(packets[3], "slow")
        await until(lambda: host.problems != [])
        assert host.problems == ["host h holds 4 packets without an end, more than half it may: stuck are slow"]
        crew.go_on.set()
        for packet in packets:
            await street.ended(packet, "slow")
        await until(lambda: host.inbox.held == 0)
        assert host.problems == [] and len(host.remarks) == 1


async def test_what_no_handler_has_taken_when_the_host_stops_goes_back_to_the_queue(
    street: Street, running_host: RunHost, make_packet: MakePacket, idea: MakeIdea
) -> None:
    crew = Crew("slow")
    crew.go_on.clear()
    packets = [make_packet(idea(f"m-{number}")) for number in range(3)]
    async with running_host(*crew.agents) as host:
        for packet in packets:
            await street.deliver(packet, "slow")
        await until(lambda: host.inbox.held == 3)
        asyncio.get_running_loop().call_later(0.05, crew.go_on.set)
    assert crew.handled == [("slow", "m-0")]
    assert (await street.bus.depth(NORMAL)).messages == 2
    async with running_host(*crew.agents):
        for packet in packets:
            await street.ended(packet, "slow")
    assert [name for _, name in crew.handled] == ["m-0", "m-1", "m-2"]


async def test_the_substrate_is_read_once_for_all_agents_that_listen(
    street: Street, running_host: RunHost, make_packet: MakePacket, idea: MakeIdea
) -> None:
    heard: list[tuple[str, str]] = []

    def listener(name: str) -> Agent:
        agent = Agent(name, role="r", swarm="s")

        @agent.on_substrate
        async def hear(packet: Packet, ctx: HandlerContext) -> None:
            heard.append((name, packet.payload_as(IdeaPayload).method_id))

        return agent

    packet = make_packet(idea("m"), to="_substrate", sender="a")
    stream = street.broker.queue(SUBSTRATE_STREAM)
    async with running_host(*map(listener, "abc"), Agent("deaf", role="r", swarm="s")):
        await until(lambda: len(stream.consumers) == 1)
        message = Message(seal(packet).body, str(packet.packet_id), type=packet.packet_type.value)
        await street.bus.publish(Publication(SUBSTRATE, "", message))
        await until(lambda: len(heard) == 2)
        assert len(stream.consumers) == 1
    assert sorted(heard) == [("b", "m"), ("c", "m")], "its sender does not hear it"


def twins() -> Sequence[Agent]:
    return [Agent("twin", role="r", swarm="s"), Agent("twin", role="r", swarm="s")]


def deadly() -> Sequence[Agent]:
    agent = Agent("native", role="r", swarm="s")

    @agent.on(PacketType.IDEA, may_crash=True)
    async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        """Run native code."""

    return [agent]


@pytest.mark.parametrize(
    ("agents", "settings", "message"),
    [
        (twins, {}, "two agents of this host have the id 'twin'"),
        (list, {}, "a host needs an agent"),
        (deadly, {}, "native: a handler with may_crash"),
        (lambda: Crew("a").agents, {"agent_key": SecretStr("k")}, "APC_AGENT_KEY would sign for every agent"),
        (lambda: Crew("a").agents, {"agent_key_file": Path("one.pem")}, "would sign for every agent"),
    ],
)
async def test_what_several_agents_of_one_process_cannot_have_is_refused(
    agents: Callable[[], Sequence[Agent]], settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(AgentInvalid, match=message):
        await run_host(
            "h",
            agents(),
            WorkerSettings(data_dir=tmp_path, **settings),
            bus_settings=BusSettings(amqp_url="amqp://guest:guest@127.0.0.1:1/", data_dir=tmp_path),
        )


def test_the_interval_of_a_hosts_heartbeats_is_seen_within_seconds() -> None:
    assert hosting.HEARTBEAT == timedelta(seconds=3)

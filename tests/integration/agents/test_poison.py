"""Packets that no handler survives: each ends as a dead letter with its reason, and the others are handled."""

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import UUID

import aio_pika
import orjson
import pytest
from tests.integration.agents.crashing_agent import HANDLED, MAY_CRASH, POISON
from tests.integration.agents.worker_process import WorkerProcess
from tests.integration.conftest import House
from tests.support.traffic import make_idea, make_packet, until

from apc_agents import Agent, HandlerContext, Worker, WorkerSettings
from apc_bus.last_resort import ATTEMPTS
from apc_bus.port import Delivery, Message, Publication
from apc_bus.rabbit import apply_rabbit
from apc_bus.topology import INTER_AGENT, agent_queue, build_topology
from apc_contracts import IdeaPayload, Packet, PacketType
from apc_contracts.wire.receipts import SET_ASIDE

INBOX = agent_queue("red-1", urgent=False)
DELIVERY_LIMIT = 3
DEAD = """
SELECT packet_id, attempt, metadata ->> 'error' AS reason FROM apc_log.packet_events WHERE to_state = 'DEAD_LETTERED'
"""
HANDLED_COUNT = "SELECT count(*) FROM apc_log.packet_recipient_state WHERE recipient = 'red-1' AND state = 'ARCHIVED'"


def ideas(house: House, *intents: str) -> list[Packet]:
    return [make_packet("librarian", make_idea(intent), ("red-1",), parent=house.opening) for intent in intents]


async def errors_to(house: House, agent: str, count: int) -> list[dict[str, Any]]:
    found: list[Delivery] = await house.agents.receive(agent, count, urgent=True)
    packets = [orjson.loads(one.message.body) for one in found]
    return [packet["payload"] | {"sender": packet["sender"]["agent_id"]} for packet in packets]


@pytest.mark.long
async def test_a_handler_that_always_raises_ends_one_packet_and_no_other(house: House) -> None:
    """Matrix row 20."""
    agent, runs = Agent("red-1", role="role", swarm="red"), Counter[str]()

    @agent.on(PacketType.IDEA, retries=1)
    async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        runs[idea.payload.intent] += 1
        if idea.payload.intent == POISON:
            raise ValueError("cannot be read")

    sent = ideas(house, "a", POISON, "b", "c")
    stop = asyncio.Event()
    async with house.persister(), house.gate():
        await house.open_session()
        # What no gate has sent, and nobody can read, reaches no handler either.
        key = "idea.red.red-1"
        await house.agents.bus.publish(Publication(INTER_AGENT, key, Message(b"{", "m", user_id=house.agents.bus.user)))
        await house.agents.publish(*sent)
        bus = await house.connect("worker")
        working = asyncio.create_task(Worker(agent, bus, settings=WorkerSettings()).run(stop))
        try:
            await until(house.has_come_to("DEAD_LETTERED", sent[1].packet_id, "red-1"))
            for healthy in (sent[0], *sent[2:]):
                await until(house.has_come_to("ARCHIVED", healthy.packet_id, "red-1"))
        finally:
            stop.set()
            await working
            await bus.close()
        (error,) = await errors_to(house, "librarian", 1)
        rows = await house.pool.fetch(DEAD)
    assert runs == {"a": 1, POISON: 2, "b": 1, "c": 1}
    assert [tuple(row) for row in rows] == [(sent[1].packet_id, 2, "handler_error")]
    assert (error["sender"], error["error_code"]) == ("red-1", "HANDLER_ERROR")
    assert error["message"] == "ValueError: cannot be read"


@dataclass(frozen=True, slots=True)
class Crashes:
    """What became of six packets, the third of which kills its worker."""

    sent: list[Packet]
    handled: list[UUID]
    """As often as the handler ran to its end."""
    victims: set[UUID]
    """Dead-lettered."""
    logged: int
    deaths: int
    recovery_seconds: float
    """From the last death until each packet had its end."""

    @property
    def poison(self) -> UUID:
        return self.sent[2].packet_id


@pytest.fixture
def crash(house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path) -> Callable[[str], Awaitable[Crashes]]:
    """Sends six packets to a worker that one of them kills, and starts it again until all is over."""

    async def run(may_crash: str) -> Crashes:
        await lower_delivery_limit(house, amqp_vhost_url)
        settings = {HANDLED: str(tmp_path / "handled"), MAY_CRASH: may_crash, "APC_DATA_DIR": str(tmp_path / "data")}
        worker = WorkerProcess("crashing_agent:agent", amqp_vhost_url, postgres_url, tmp_path, **settings)
        sent = ideas(house, "a", "b", POISON, "c", "d", "e")
        async with house.persister(), house.gate():
            await house.open_session()
            await house.agents.publish(*sent)
            await until(house.is_logged(*(one.packet_id for one in sent)))
            deaths, recovery_seconds = await restart_until_over(house, worker, len(sent))
            rows = await house.pool.fetch(DEAD)
            victims = {row["packet_id"] for row in rows}
            errors = await errors_to(house, "librarian", len(victims))
            logged = await house.count("agent_packets", "sender_agent_id = 'librarian' AND packet_type = 'IDEA'")
        assert deaths == DELIVERY_LIMIT + 1
        assert {row["reason"] for row in rows} == {"delivery_limit"}
        assert {(error["sender"], error["error_code"]) for error in errors} == {("orchestrator", "DELIVERY_FAILED")}
        assert {UUID(error["details"]["packet_id"]) for error in errors} == victims
        lines = list(map(UUID, (tmp_path / "handled").read_text().split()))
        return Crashes(sent, lines, victims, logged, deaths, recovery_seconds)

    return run


async def restart_until_over(house: House, worker: WorkerProcess, count: int) -> tuple[int, float]:
    """Return how often the worker was killed, and the seconds from its last death until all packets had their end."""
    deaths, died_at = 0, monotonic()

    async def is_over() -> bool:
        dead = {row["packet_id"] for row in await house.pool.fetch(DEAD)}
        handled: int = await house.pool.fetchval(HANDLED_COUNT)
        return len(dead) + handled >= count + 1  # and START's SIGNAL

    while not await is_over():
        async with worker.running() as process:
            ends = [asyncio.create_task(process.wait()), asyncio.create_task(until(is_over))]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if process.returncode == -signal.SIGKILL:
                deaths, died_at = deaths + 1, monotonic()
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
    return deaths, monotonic() - died_at


@pytest.mark.faults
async def test_a_crash_counts_against_its_own_packet_alone(
    crash: Callable[[str], Awaitable[Crashes]], exercised: Callable[..., None]
) -> None:
    """Matrix row 21."""
    found = await crash("yes")
    exercised(
        "a handler that kills its process",
        packets=len(found.sent),
        injected=found.deaths,
        lost=len(found.sent) - found.logged,
        doubled=len(found.handled) - len(set(found.handled)),
        recovery_seconds=found.recovery_seconds,
    )
    assert found.victims == {found.poison}
    innocents = sorted(one.packet_id for one in found.sent if one.packet_id != found.poison)
    assert sorted(found.handled) == innocents, "each once"


@pytest.mark.faults
async def test_without_the_mark_the_poison_dies_alone_too(crash: Callable[[str], Awaitable[Crashes]]) -> None:
    """After two crashes the worker takes one packet at a time (`apc_bus.last_resort`)."""
    found = await crash("no")
    assert found.victims == {found.poison}
    innocents = {one.packet_id for one in found.sent if one.packet_id != found.poison}
    assert set(found.handled) == innocents


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_more_crashes_than_the_delivery_limit_cost_no_neighbour(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> None:
    settings = {HANDLED: str(tmp_path / "handled"), MAY_CRASH: "no", "APC_DATA_DIR": str(tmp_path / "data")}
    worker = WorkerProcess("crashing_agent:agent", amqp_vhost_url, postgres_url, tmp_path, **settings)
    sent = ideas(house, *(POISON if number % 4 == 2 else str(number) for number in range(36)))
    poisons = {one.packet_id for one in sent[2::4]}
    async with house.persister(), house.gate():
        await house.open_session()
        await house.agents.publish(*sent)
        await until(house.is_logged(*(one.packet_id for one in sent)))
        deaths, _ = await restart_until_over(house, worker, len(sent))
        rows = await house.pool.fetch(DEAD)
    assert deaths > 25
    assert {row["packet_id"] for row in rows} == poisons
    assert {row["reason"] for row in rows} == {SET_ASIDE}, "before the delivery limit was reached"
    lines = set(map(UUID, (tmp_path / "handled").read_text().split()))
    assert lines == {one.packet_id for one in sent} - poisons


@pytest.mark.long
async def test_a_packet_that_kills_its_worker_is_dead_lettered_alone(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> None:
    settings = {HANDLED: str(tmp_path / "handled"), MAY_CRASH: "no", "APC_DATA_DIR": str(tmp_path / "data")}
    worker = WorkerProcess("crashing_agent:agent", amqp_vhost_url, postgres_url, tmp_path, **settings)
    sent = ideas(house, "a", "b", POISON, "c", "d")
    async with house.persister(), house.gate():
        await house.open_session()
        await house.agents.publish(*sent)
        await until(house.is_logged(*(one.packet_id for one in sent)))
        deaths, _ = await restart_until_over(house, worker, len(sent))
        rows = await house.pool.fetch(DEAD)
        (error,) = await errors_to(house, "librarian", 1)
        assert not await house.count("packet_conflicts"), "the broker's dead letter says it once more"
    assert deaths == 2 + ATTEMPTS
    assert [(row["packet_id"], row["reason"]) for row in rows] == [(sent[2].packet_id, SET_ASIDE)]
    assert (error["sender"], error["error_code"]) == ("orchestrator", "DELIVERY_FAILED")
    assert error["details"]["reason"] == SET_ASIDE
    lines = set(map(UUID, (tmp_path / "handled").read_text().split()))
    assert lines == {one.packet_id for one in sent if one is not sent[2]}


async def lower_delivery_limit(house: House, url: str) -> None:
    """21 crashes would only take longer."""
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        await channel.queue_delete(INBOX)
    planned = build_topology(1, house.agents.queues)
    queues = [replace(one, delivery_limit=DELIVERY_LIMIT) if one.name == INBOX else one for one in planned.queues]
    await apply_rabbit(url, replace(planned, queues=tuple(queues)))

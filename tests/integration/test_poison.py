"""Packets that no handler survives: each ends as a dead letter with its reason, and the others are handled."""

import asyncio
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import aiormq
import orjson
import pytest

from apc_agents import Agent, HandlerContext, Worker, WorkerSettings
from apc_bus.port import Delivery, Message, Publication
from apc_bus.rabbit import apply_rabbit
from apc_bus.topology import INTER_AGENT, agent_queue, build_topology
from apc_contracts import IdeaPayload, Packet, PacketType
from apc_orchestrator.testing import make_idea, make_packet, until

from .crashing_agent import HANDLED, MAY_CRASH, POISON
from .worker_process import WorkerProcess

INBOX = agent_queue("red-1", urgent=False)
DELIVERY_LIMIT = 3
DEAD = """
SELECT packet_id, attempt, metadata ->> 'error' AS reason FROM apc_log.packet_events WHERE to_state = 'DEAD_LETTERED'
"""
HANDLED_COUNT = "SELECT count(*) FROM apc_log.packet_recipient_state WHERE recipient = 'red-1' AND state = 'ARCHIVED'"


def ideas(house: Any, *intents: str) -> list[Packet[Any]]:
    return [make_packet("librarian", make_idea(intent), ("red-1",), parent=house.opening) for intent in intents]


async def errors_to(house: Any, agent: str, count: int) -> list[dict[str, Any]]:
    found: list[Delivery] = await house.agents.receive(agent, count, urgent=True)
    packets = [orjson.loads(one.message.body) for one in found]
    return [packet["payload"] | {"sender": packet["sender"]["agent_id"]} for packet in packets]


async def test_a_handler_that_always_raises_ends_one_packet_and_no_other(house: Any) -> None:
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


@pytest.mark.faults
@pytest.mark.parametrize("may_crash", ["yes", "no"])
async def test_a_crash_counts_against_its_own_packet_alone(
    house: Any, amqp_vhost_url: str, postgres_url: str, tmp_path: Path, may_crash: str
) -> None:
    """Without the mark what the worker held dies with the poison, even what was handled and not yet told: it bites."""
    await lower_delivery_limit(house, amqp_vhost_url)
    settings = {HANDLED: str(tmp_path / "handled"), MAY_CRASH: may_crash}
    worker = WorkerProcess("crashing_agent:agent", amqp_vhost_url, postgres_url, tmp_path, **settings)
    sent = ideas(house, "a", "b", POISON, "c", "d", "e")
    poison, behind = sent[2].packet_id, {one.packet_id for one in sent[3:]}
    deaths = 0
    async with house.persister(), house.gate():
        await house.open_session()
        await house.agents.publish(*sent)
        await until(house.is_logged(*(one.packet_id for one in sent)))

        async def is_over() -> bool:
            dead = {row["packet_id"] for row in await house.pool.fetch(DEAD)}
            handled: int = await house.pool.fetchval(HANDLED_COUNT)
            return len(dead) + handled >= len(sent) + 1  # and START's SIGNAL

        while not await is_over():
            async with worker.running() as process:
                ends = [asyncio.create_task(process.wait()), asyncio.create_task(until(is_over))]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                deaths += process.returncode == -signal.SIGKILL
                for end in ends:
                    end.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
        rows = await house.pool.fetch(DEAD)
        victims = {row["packet_id"] for row in rows}
        errors = await errors_to(house, "librarian", len(victims))
    assert deaths == DELIVERY_LIMIT + 1
    lines = list(map(UUID, (tmp_path / "handled").read_text().split()))
    if may_crash == "yes":
        assert victims == {poison}
        assert sorted(lines) == sorted(one.packet_id for one in sent if one.packet_id != poison), "each once"
    else:
        assert victims >= {poison, *behind} and behind.isdisjoint(lines)
    assert {row["reason"] for row in rows} == {"delivery_limit"}
    assert {(error["sender"], error["error_code"]) for error in errors} == {("orchestrator", "DELIVERY_FAILED")}
    assert {UUID(error["details"]["packet_id"]) for error in errors} == victims


async def lower_delivery_limit(house: Any, url: str) -> None:
    """21 crashes would only take longer."""
    async with aiormq.connect(url) as connection:
        channel = await connection.channel()
        await channel.queue_delete(INBOX)
    planned = build_topology(1, house.agents.queues)
    queues = [replace(one, delivery_limit=DELIVERY_LIMIT) if one.name == INBOX else one for one in planned.queues]
    await apply_rabbit(url, replace(planned, queues=tuple(queues)))

"""kill -9 of a worker around an effect of ctx.once, over a real broker and database: made once, or told as unknown."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.integration.agents.paying_agent import RETRIES
from tests.integration.agents.worker_process import WorkerProcess
from tests.integration.conftest import House
from tests.support.account import ACCOUNT
from tests.support.traffic import AGENTS, make_idea, make_packet, until
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, EmitRefused, HandlerContext, Worker, WorkerSettings
from apc_agents.effects import EffectState, PostgresEffectStore
from apc_contracts import IdeaPayload, Packet, PacketType, ReceiptKind

ENTRIES = """
SELECT metadata #>> '{effect,entry}' AS entry, metadata #>> '{effect,claim}' AS claim FROM apc_log.packet_events
WHERE packet_id = $1 AND metadata ? 'effect' ORDER BY seq
"""


def lines(folder: Path, name: str) -> list[str]:
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


async def told(house: House, packet: Packet) -> list[str]:
    """Return what the log has of the packet's effects, in order: the claims are numbered as they came."""
    rows = await house.pool.fetch(ENTRIES, packet.packet_id)
    claims = list(dict.fromkeys(row["claim"] for row in rows))
    return [f"{row['entry']} {claims.index(row['claim'])}" for row in rows]


def has_told(house: House, packet: Packet, expected: list[str]) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return await told(house, packet) == expected

    return check


def payer(amqp_url: str, database_url: str, folder: Path) -> WorkerProcess:
    settings = {ACCOUNT: str(folder), "APC_EFFECT_LEASE": "PT1S"}
    return WorkerProcess("paying_agent:agent", amqp_url, database_url, folder, **settings)


@pytest.mark.long
async def test_an_effect_is_made_once_whatever_is_killed_and_retried(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path, exercised: Callable[..., None]
) -> None:
    """Matrix row 9."""
    worker, store = payer(amqp_vhost_url, postgres_url, tmp_path), PostgresEffectStore(house.pool)
    trigger = make_packet("librarian", make_idea(), ("red-1",), parent=house.opening)
    async with house.persister(), house.gate():
        await house.open_session()
        await house.agents.publish(trigger)
        await worker.dies_at("worker.before_effect_claim")
        assert (lines(tmp_path, "payments"), list(await store.list()), await told(house, trigger)) == ([], [], [])
        await worker.dies_at("worker.after_effect_record")
        assert (len(lines(tmp_path, "payments")), lines(tmp_path, "runs")) == (1, [])
        repaired_at = monotonic()
        async with worker.running(**{RETRIES: "3"}):
            await until(house.has_come_to("ARCHIVED", trigger.packet_id, "red-1"))
            recovery = monotonic() - repaired_at
    exercised(
        "SIGKILL of a recipient in its handler",
        packets=1,
        injected=2,
        lost=1 - await house.count("agent_packets", f"packet_id = '{trigger.packet_id}'"),
        doubled=len(lines(tmp_path, "payments")) - 1,
        recovery_seconds=recovery,
    )
    assert lines(tmp_path, "runs") == ["{'receipt': 1}"] * 4
    assert len(lines(tmp_path, "payments")) == 1
    (kept,) = await store.list()
    assert (kept.state, kept.result, kept.session_id) == (EffectState.MADE, {"receipt": 1}, trigger.trace.session_id)
    # The worker died before it could report that it was made: the next one has.
    assert await told(house, trigger) == ["claimed 0", "made 0"]


@pytest.mark.long
async def test_an_effect_whose_worker_died_before_the_record_is_unknown_until_an_operator_settles_it(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> None:
    worker, store = payer(amqp_vhost_url, postgres_url, tmp_path), PostgresEffectStore(house.pool)
    trigger = make_packet("librarian", make_idea(), ("red-1",), parent=house.opening)
    async with house.persister(), house.gate():
        await house.open_session()
        await house.agents.publish(trigger)
        await worker.dies_at("worker.after_effect")
        async with worker.running():
            await until(house.has_come_to("DEAD_LETTERED", trigger.packet_id, "red-1"))
            (unknown,) = await store.list(states=[EffectState.UNKNOWN])
            assert (unknown.effect_id.packet_id, unknown.effect_id.key) == (trigger.packet_id, "charge")
            assert (len(lines(tmp_path, "payments")), lines(tmp_path, "runs")) == (1, [])
            await store.settle(unknown.effect_id, {"receipt": "found"}, "operator")
            await house.agents.report("red-1", [trigger.packet_id], ReceiptKind.REQUEUE)
            await until(house.has_come_to("ARCHIVED", trigger.packet_id, "red-1"))
    assert await told(house, trigger) == ["claimed 0", "unknown 0", "settled 0"]
    assert lines(tmp_path, "runs") == ["{'receipt': 'found'}"]
    assert len(lines(tmp_path, "payments")) == 1
    # The sender was told, by name, what is not known.
    errors = "SELECT packet ->> 'payload' FROM apc_log.packets WHERE packet ->> 'packet_type' = 'ERROR'"
    assert f"EffectUnknown: effect 'charge' of packet {trigger.packet_id} by red-1" in str(
        await house.pool.fetchval(errors)
    )


@pytest.mark.long
async def test_an_effect_whose_worker_died_before_it_began_is_in_the_log_as_claimed(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> None:
    worker, store = payer(amqp_vhost_url, postgres_url, tmp_path), PostgresEffectStore(house.pool)
    trigger = make_packet("librarian", make_idea(), ("red-1",), parent=house.opening)
    async with house.persister(), house.gate():
        await house.open_session()
        await house.agents.publish(trigger)
        await worker.dies_at("worker.after_effect_claim")
        assert lines(tmp_path, "payments") == []
        await until(has_told(house, trigger, ["claimed 0"]))
        async with worker.running():
            await until(house.has_come_to("DEAD_LETTERED", trigger.packet_id, "red-1"))
            (unknown,) = await store.list(states=[EffectState.UNKNOWN])
            await store.release(unknown.effect_id)
            await house.agents.report("red-1", [trigger.packet_id], ReceiptKind.REQUEUE)
            await until(house.has_come_to("ARCHIVED", trigger.packet_id, "red-1"))
    assert len(lines(tmp_path, "payments")) == 1
    assert await told(house, trigger) == ["claimed 0", "unknown 0", "claimed 1", "made 1"]


@pytest.mark.parametrize("is_refused", [False, True])
async def test_an_effect_waits_for_the_verdict_on_a_packet(house: House, is_refused: bool) -> None:
    agent, ends = Agent("red-1", role=ROLE, swarm=AGENTS["red-1"][0]), list[Any]()

    @agent.on(PacketType.IDEA)
    async def act(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        emitted = await ctx.emit(idea.payload, to="nobody" if is_refused else "sentinel")
        try:
            ends.append(await ctx.once("act", lambda: "made", after=emitted))
        except EmitRefused as refused:
            ends.append(refused.code)

    trigger = make_packet("librarian", make_idea(), ("red-1",), parent=house.opening)
    async with house.persister(), house.gate():
        await house.open_session()
        bus, stop = await house.connect("agents"), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Worker(agent, bus, settings=WorkerSettings()).run(stop))
            await house.agents.publish(trigger)
            await until(house.has_come_to("ARCHIVED", trigger.packet_id, "red-1"))
            stop.set()
        await bus.close()
    assert ends == (["UNROUTABLE"] if is_refused else ["made"])
    assert await told(house, trigger) == ([] if is_refused else ["claimed 0", "made 0"])


@pytest.mark.long
async def test_a_handler_that_runs_again_elsewhere_waits_for_the_same_verdict(house: House) -> None:
    """Its packet then has another time and clock, and is known by its cause alone."""
    agent, ends, made = Agent("red-1", role=ROLE, swarm=AGENTS["red-1"][0]), list[Any](), list[int]()
    is_made, never = asyncio.Event(), asyncio.Event()

    @agent.on(PacketType.IDEA)
    async def act(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        emitted = await ctx.emit(idea.payload, to="sentinel")
        ends.append(await ctx.once("act", lambda: made.append(1), after=emitted))
        if not is_made.is_set():
            is_made.set()
            await never.wait()

    trigger = make_packet("librarian", make_idea(), ("red-1",), parent=house.opening)
    async with house.persister(), house.gate():
        await house.open_session()
        buses = [await house.connect("agents") for _ in range(2)]
        first, second = (Worker(agent, bus, effects=PostgresEffectStore(house.pool)) for bus in buses)
        at_first = asyncio.create_task(first.run(never))
        await house.agents.publish(trigger)
        await is_made.wait()
        elsewhere = asyncio.create_task(second.run(never))
        at_first.cancel()
        await until(house.has_come_to("ARCHIVED", trigger.packet_id, "red-1"))
        elsewhere.cancel()
        await asyncio.gather(at_first, elsewhere, return_exceptions=True)
        for bus in buses:
            await bus.close()
    assert (ends, made) == ([None, None], [1])
    assert await told(house, trigger) == ["claimed 0", "made 0"]

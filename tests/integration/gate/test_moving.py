"""Shards divided over orchestrators by name, and one that moves while it is at work."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import House
from tests.support.apc_command import ApcCommand
from tests.support.traffic import ScriptedWorker, make_idea, make_packet, make_start, until, violated_equalities
from tests.support.traffic.equalities import Sent

from apc_contracts.identity.ids import shard_of
from apc_orchestrator import Orchestrator

Apc = Callable[..., Awaitable[Any]]
NAMES = ("gate-0", "gate-1")
DIVIDED = {"orchestrators": 2}
OPEN = "SELECT count(*) = $1 AND sum(open_deliveries) = 0 FROM apc_log.sessions"
EPOCHS = "SELECT shard, epoch, orchestrator FROM apc_log.shard_epochs ORDER BY shard, epoch"
FENCED = "SELECT count(*) FROM apc_log.packet_conflicts"
SESSIONS = [
    next(name for number in range(99) if shard_of(name := f"session-{number}-{tag}", 2) == shard)
    for shard in (0, 1)
    for tag in ("a", "b")
]


@pytest.fixture
def shards() -> int:
    """Two: one each."""
    return 2


@pytest.fixture
def apc(house: House, tmp_path: Path, postgres_url: str) -> Apc:
    """Runs `apc` with this broker and database."""
    given = {
        "APC_AMQP_URL": house.settings.amqp_url.get_secret_value() if house.settings.amqp_url else "",
        "APC_DATABASE_URL": postgres_url,
        "APC_SHARDS": "2",
    }
    return lambda *arguments: asyncio.to_thread(ApcCommand(tmp_path), *arguments, given=given)


def holds(gate: Orchestrator, *shards: int) -> Callable[[], Awaitable[bool]]:
    """Return a condition: this orchestrator holds these shards, and no others."""

    async def found() -> bool:
        return {state.shard for state in gate.shards if state.is_active} == set(shards)

    return found


async def test_each_takes_its_share_and_that_of_one_who_left_until_it_returns(house: House) -> None:
    async with house.persister(), house.gate(orchestrator="gate-0", **DIVIDED) as (first, _):
        async with house.gate(orchestrator="gate-1", **DIVIDED) as (second, _):
            await until(holds(first, 0))
            await until(holds(second, 1))
            await until(lambda: _ready(first, second))
        await until(holds(first, 0, 1))
        async with house.gate(orchestrator="gate-1", **DIVIDED) as (again, _):
            await until(holds(again, 1))
            await until(holds(first, 0))
    rows = [(row["shard"], row["orchestrator"]) for row in await house.pool.fetch(EPOCHS)]
    assert [name for shard, name in rows if shard == 1][-3:] == ["gate-1", "gate-0", "gate-1"], rows


async def _ready(*gates: Orchestrator) -> bool:
    return all(gate.is_ready for gate in gates)


@pytest.mark.long
async def test_a_shard_moves_under_load_and_nothing_is_lost_or_doubled(house: House, apc: Apc) -> None:
    sent = Sent()
    workers = [ScriptedWorker(house.agents.bus, agent) for agent in house.agents.cast]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(house.persister())
        first, second = [
            (await stack.enter_async_context(house.gate(orchestrator=name, **DIVIDED)))[0] for name in NAMES
        ]
        await until(holds(first, 0))
        await until(holds(second, 1))
        for worker in workers:
            await stack.enter_async_context(worker.working())
        await house.agents.register()
        openings = {session_id: make_start(session_id) for session_id in SESSIONS}
        await house.agents.publish(*openings.values())
        sent.confirmed.update(one.packet_id for one in openings.values())
        stop = asyncio.Event()

        async def load() -> None:
            while not stop.is_set():
                packets = [
                    make_packet("red-1", make_idea(), ("sentinel",), parent=opening, session_id=session_id)
                    for session_id, opening in openings.items()
                ]
                await house.agents.publish(*packets)
                sent.confirmed.update(packet.packet_id for packet in packets)
                await until(house.is_logged(*(packet.packet_id for packet in packets)))

        loading = asyncio.create_task(load())
        done = await apc("shard", "move", "1", "--to", "gate-0", "--json")
        assert done.returncode == 0, done
        moved = json.loads(done.stdout)
        assert (moved["orchestrator"], moved["from"], moved["shard"]) == ("gate-0", "gate-1", 1)
        await until(holds(first, 0, 1))
        await until(holds(second))
        await until(lambda: _ready(second))
        stop.set()
        await loading
        await until(house.is_logged(*sent.confirmed))

        async def is_done() -> bool:
            return bool(await house.pool.fetchval(OPEN, len(SESSIONS)))

        await until(is_done)
        listed = json.loads((await apc("shard", "list", "--json")).stdout)
        assert [(row["shard"], row["orchestrator"], row["moved_to"], row["state"]) for row in listed] == [
            (0, "gate-0", "", "served"),
            (1, "gate-0", "gate-0", "served"),
        ]
        assert [row["open_sessions"] for row in listed] == [2, 2]
    assert await violated_equalities(house.pool, sent, workers) == []
    assert await house.pool.fetchval(FENCED) == 0, "the one who left had ended everything"


@pytest.mark.long
async def test_one_that_does_not_run_is_waited_for_while_the_shard_is_served(house: House, apc: Apc) -> None:
    async with house.persister(), house.gate(orchestrator="gate-0") as (gate, _):
        await until(holds(gate, 0, 1))
        await house.agents.register()
        done = await apc("shard", "move", "1", "--to", "gate-9", "--timeout", "1.5")
        assert done.returncode and "gate-0 holds it and goes on" in done.stderr, done
        (_, row) = json.loads((await apc("shard", "list", "--json")).stdout)
        assert (row["state"], row["orchestrator"], row["moved_to"]) == ("moving", "gate-0", "gate-9")
        opening = make_start(SESSIONS[-1])
        await house.agents.publish(opening)
        await until(house.is_logged(opening.packet_id))
        assert (await apc("shard", "free", "1")).returncode == 0
        done = await apc("shard", "move", "1", "--to", "gate-0")
        assert done.returncode == 0 and "holds shard 1 already" in done.stdout, done
        for wrong in (("2", "--to", "gate-0"), ("1", "--to", "no name")):
            assert (await apc("shard", "move", *wrong)).returncode
        (_, row) = json.loads((await apc("shard", "list", "--json")).stdout)
        assert (row["state"], row["moved_to"]) == ("served", "gate-0")
    (_, row) = json.loads((await apc("shard", "list", "--json")).stdout)
    assert row["state"] == "without a gate"

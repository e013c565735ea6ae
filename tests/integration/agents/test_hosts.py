"""Hosts as processes: killed, poisoned, blocked, replaced under load. Nothing is lost, doubled or out of order."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.integration.agents.hosted_agents import BLOCKING, HANDLED, HOSTED, POISON
from tests.integration.agents.test_poison import DEAD
from tests.integration.agents.worker_process import HostProcess
from tests.integration.conftest import House
from tests.support.traffic import make_idea, make_packet, until

from apc_bus import headers
from apc_bus.last_resort import ATTEMPTS
from apc_bus.port import Message, Publication
from apc_bus.rabbit import apply_rabbit
from apc_bus.topology import RECEIPTS, AgentQueues, build_topology
from apc_contracts import Packet, PacketType, new_packet_id
from apc_contracts.identity.registry_change import encode_registry_change
from apc_contracts.wire.receipts import SET_ASIDE
from apc_log.registry import read_registry

HOST = "h0"
ENDED = "SELECT count(*) FROM apc_log.packet_recipient_state WHERE recipient = ANY($1) AND state = 'ARCHIVED'"
REPLIES = "SELECT count(*), count(DISTINCT cause_packet_id) FROM apc_log.agent_packets WHERE sender_agent_id = ANY($1)"
MODULE = "hosted_agents"


async def move(house: House, url: str) -> None:
    """Let the agents run on the host, with their session open."""
    hosted = [AgentQueues(name, house.agents.cast[name][0], frozenset(PacketType), None, HOST) for name in HOSTED]
    others = [one for one in house.agents.queues if one.agent_id not in HOSTED]
    await apply_rabbit(url, build_topology(1, [*others, *hosted]))
    for name in HOSTED:
        body = encode_registry_change(house.agents.registration(name, host=HOST))
        message = Message(body, str(new_packet_id()), type=headers.TYPE_REGISTRY, user_id=house.agents.bus.user)
        await house.agents.bus.publish(Publication(RECEIPTS, "0", message))

    async def is_moved() -> bool:
        known = await read_registry(house.pool)
        return all(known[name].host == HOST for name in HOSTED)

    await until(is_moved)


def ideas(house: House, *intents: str) -> list[Packet]:
    """Return an IDEA for each intent, to one agent of the host and then to the other."""
    return [
        make_packet("librarian", make_idea(intent), (HOSTED[number % 2],), parent=house.opening)
        for number, intent in enumerate(intents)
    ]


def have_ended(house: House, count: int) -> Callable[[], Awaitable[bool]]:
    """Return a condition: so many deliveries to agents of the host have come to a good end, START's SIGNALs aside."""

    async def holds() -> bool:
        return bool(await house.pool.fetchval(ENDED, list(HOSTED)) >= count + len(HOSTED))

    return holds


@pytest.fixture
def host(amqp_vhost_url: str, postgres_url: str, tmp_path: Path) -> HostProcess:
    settings = {HANDLED: str(tmp_path / "handled"), "APC_DATA_DIR": str(tmp_path / "data")}
    agents = [f"{MODULE}:red", f"{MODULE}:blue"]
    return HostProcess(HOST, agents, amqp_vhost_url, postgres_url, tmp_path, **settings)


def handled(folder: Path) -> list[list[str]]:
    """Return agent, packet, intent, and process and thread, of what handlers have run through, in that order."""
    lines = (folder / "handled").read_text().splitlines() if (folder / "handled").exists() else []
    return [line.split(" ") for line in lines]


def events(folder: Path, event: str) -> list[dict[str, Any]]:
    """Return the lines with this event in the log of the processes."""
    lines = (folder / "worker.log").read_bytes().splitlines() if (folder / "worker.log").exists() else []
    found = [orjson.loads(line) for line in lines if line[:1] == b"{" and line[-1:] == b"}"]
    return [line for line in found if line["event"] == event]


@pytest.mark.long
async def test_a_host_that_is_killed_amid_load_loses_and_doubles_nothing(
    house: House, host: HostProcess, amqp_vhost_url: str, tmp_path: Path
) -> None:
    sent = ideas(house, *map(str, range(160)))  # 80 for each agent: one sender may have 125 open
    async with house.persister(), house.gate():
        await house.open_session()
        await move(house, amqp_vhost_url)
        async with host.running() as process:
            await house.agents.publish(*sent)
            await until(lambda: _is(len(handled(tmp_path)) > 20))
            process.kill()
            await process.wait()
        assert len(handled(tmp_path)) < len(sent), "killed too late"
        async with host.running():
            await until(have_ended(house, len(sent)), 120)
        replies = await house.pool.fetch(REPLIES, list(HOSTED))
        dead = await house.pool.fetch(DEAD)
    assert [tuple(row) for row in replies] == [(len(sent), len(sent))], "each packet took effect once"
    assert not dead


@pytest.mark.long
async def test_a_packet_that_kills_its_host_is_dead_lettered_alone(
    house: House, host: HostProcess, amqp_vhost_url: str, tmp_path: Path
) -> None:
    """The host ends twice: with the packet among others, and alone with it. From then on child processes do."""
    sent = ideas(house, "a", "b", POISON, "c", "d", "e")
    poison, deaths = sent[2].packet_id, 0
    async with house.persister(), house.gate():
        await house.open_session()
        await move(house, amqp_vhost_url)
        await house.agents.publish(*sent)
        await until(house.is_logged(*(one.packet_id for one in sent)))
        is_over = house.has_come_to("DEAD_LETTERED", poison, HOSTED[0])
        while not await is_over():
            async with host.running() as process:
                ends = [asyncio.create_task(process.wait()), asyncio.create_task(until(is_over, 60))]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                deaths += process.returncode == -signal.SIGKILL
                for end in ends:
                    end.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
        async with host.running():
            await until(have_ended(house, len(sent) - 1), 60)
        rows = await house.pool.fetch(DEAD)
    assert deaths == 2
    assert [(row["packet_id"], row["reason"]) for row in rows] == [(poison, SET_ASIDE)]
    assert {intent for _, _, intent, _ in handled(tmp_path)} == {"a", "b", "c", "d", "e"}


@pytest.mark.long
async def test_a_standby_takes_over_in_order(
    house: House, host: HostProcess, amqp_vhost_url: str, tmp_path: Path
) -> None:
    """A rolling restart: the new process waits beside the old one, which is then told to end, under load."""
    sent = ideas(house, *map(str, range(160)))  # 80 for each agent: one sender may have 125 open
    async with house.persister(), house.gate():
        await house.open_session()
        await move(house, amqp_vhost_url)
        async with host.running() as old:
            await until(lambda: _is(len(events(tmp_path, "host_started")) == 1), 60)
            async with host.running():
                # The broker's count of consumers has the active one alone.
                await until(lambda: _is(len(events(tmp_path, "host_started")) == 2), 60)
                await house.agents.publish(*sent)
                await until(lambda: _is(len(handled(tmp_path)) > 20))
                old.terminate()
                assert await old.wait() == 0
                assert len(handled(tmp_path)) < len(sent), "ended too late"
                await until(have_ended(house, len(sent)), 120)
        dead = await house.pool.fetch(DEAD)
    assert not dead
    for name, offset in zip(HOSTED, (0, 1), strict=True):
        in_order = [int(intent) for agent, _, intent, _ in handled(tmp_path) if agent == name]
        assert in_order == list(range(offset, len(sent), 2)), "each once, in the order in which they were sent"


@pytest.mark.long
async def test_a_handler_that_blocks_the_loop_is_named_with_its_packet_and_its_place(
    house: House, host: HostProcess, amqp_vhost_url: str, tmp_path: Path
) -> None:
    sent = ideas(house, "a", BLOCKING, "b")
    async with house.persister(), house.gate():
        await house.open_session()
        await move(house, amqp_vhost_url)
        async with host.running():
            await house.agents.publish(*sent)
            await until(have_ended(house, len(sent)), 60)
    blocked = events(tmp_path, "loop_blocked")  # a busy machine may block it elsewhere, too
    (told,) = [one for one in blocked if one.get("packet_id") == str(sent[1].packet_id)]
    assert (told["host"], told["agent_id"]) == (HOST, HOSTED[1])
    assert "time.sleep(1.5)" in told["stack"]
    assert len(events(tmp_path, "loop_free_again")) == len(blocked)


@pytest.mark.long
async def test_an_agent_that_runs_in_a_process_neither_blocks_nor_ends_its_host(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> None:
    settings = {HANDLED: str(tmp_path / "handled"), "APC_DATA_DIR": str(tmp_path / "data")}
    agents = [f"{MODULE}:red_apart", f"{MODULE}:blue"]
    host = HostProcess(HOST, agents, amqp_vhost_url, postgres_url, tmp_path, **settings)
    sent = ideas(house, BLOCKING, "a", POISON, "b", "c", "d")
    async with house.persister(), house.gate():
        await house.open_session()
        await move(house, amqp_vhost_url)
        async with host.running() as process:
            await house.agents.publish(*sent)
            await until(house.has_come_to("DEAD_LETTERED", sent[2].packet_id, HOSTED[0]), 120)
            await until(have_ended(house, len(sent) - 1), 60)
            assert process.returncode is None
            own = str(process.pid)
        rows = await house.pool.fetch(DEAD)
    assert [(row["packet_id"], row["reason"]) for row in rows] == [(sent[2].packet_id, SET_ASIDE)]
    where = {intent: place.startswith(f"{own}:") for _, _, intent, place in handled(tmp_path)}
    assert where == {BLOCKING: False, "c": False, "a": True, "b": True, "d": True}
    # A busy machine may take half a second to import a module: the handler that blocks is the one that is asked for.
    assert not any("time.sleep" in one["stack"] for one in events(tmp_path, "loop_blocked"))
    assert len(events(tmp_path, "process_ended")) == ATTEMPTS


@pytest.mark.long
async def test_an_agent_that_runs_in_a_thread_does_not_block_its_host(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> None:
    settings = {HANDLED: str(tmp_path / "handled"), "APC_DATA_DIR": str(tmp_path / "data")}
    agents = [f"{MODULE}:red_aside", f"{MODULE}:blue"]
    host = HostProcess(HOST, agents, amqp_vhost_url, postgres_url, tmp_path, **settings)
    sent = ideas(house, BLOCKING, "a", "b", "c")
    async with house.persister(), house.gate():
        await house.open_session()
        await move(house, amqp_vhost_url)
        async with host.running() as process:
            await house.agents.publish(*sent)
            await until(have_ended(house, len(sent)), 60)
            own = process.pid
        assert process.returncode == 0, "the thread drains with its host"
        replies = await house.pool.fetchrow(REPLIES, list(HOSTED))
    assert replies is not None and tuple(replies) == (len(sent), len(sent))
    where = {intent: place for _, _, intent, place in handled(tmp_path)}
    thread = f"{own}:agent_{HOSTED[0]}"
    assert where == {BLOCKING: thread, "b": thread, "a": f"{own}:MainThread", "c": f"{own}:MainThread"}
    assert not any("time.sleep" in one["stack"] for one in events(tmp_path, "loop_blocked"))


async def _is(holds: bool) -> bool:
    return holds

"""Agents of a host, as an operator registers, moves and revokes them beside the services."""

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from tests.integration.conftest import House
from tests.support.apc_command import ApcCommand
from tests.support.traffic import SESSION, make_idea, make_packet, until

from apc_bus.errors import QueueMissing, SubscriptionLost
from apc_bus.port import Bus
from apc_bus.topology import agent_queue, host_key, host_queue, inbox_queue
from apc_cli.commands.agent import (
    AgentForm,
    Place,
    add_agent,
    add_agents_of_code,
    move_agent,
    revoke_agent,
)
from apc_cli.commands.dead_letter import Filter, dead_rows, settle_dead
from apc_cli.doctor.agents import look_at_agents
from apc_cli.errors import InputUnusable, ServiceAway
from apc_cli.output.files import names_in
from apc_contracts.wire.receipts import ReceiptKind
from apc_log.queries.agents import count_left_behind, list_registered
from apc_log.registry import read_registry

HOST = "h0"
PATIENCE = timedelta(seconds=60)
CROWD = """
from apc_agents import Agent, Team

alone = Agent("alone", role="r", swarm="crowd")
team = Team("pair", agents=[Agent("one", role="r", swarm="crowd"), Agent("two", role="r", swarm="crowd")], entry="one")
judge = Agent("judge", role="r", swarm="crowd", rights=["veto"])
"""


@pytest.fixture
async def running(
    house: House, postgres_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[House]:
    """A house with an open session, and its addresses in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("APC_AMQP_URL", house.settings.amqp_url.get_secret_value())
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    async with house.persister(), house.gate():
        await house.open_session()
        yield house


@dataclass
class Process:
    """What the process of an agent does, at its old or its new place: takes, acknowledges, reports."""

    house: House
    handled: Counter[UUID] = field(default_factory=Counter)
    keys: set[str] = field(default_factory=set)

    @asynccontextmanager
    async def at(self, agent_id: str, host: str | None) -> AsyncIterator[None]:
        """Handle what comes for the agent."""
        async with asyncio.TaskGroup() as tasks:
            started = [
                tasks.create_task(self._consume(agent_id, inbox_queue(agent_id, host, urgent)))
                for urgent in (True, False)
            ]
            try:
                yield
            finally:
                for one in started:
                    one.cancel()

    async def _consume(self, agent_id: str, queue: str) -> None:
        bus = self.house.agents.bus
        with suppress(SubscriptionLost):  # the queues of the old place are deleted at the end of a move
            await self._handle(agent_id, bus, queue)

    async def _handle(self, agent_id: str, bus: Bus, queue: str) -> None:
        async with bus.subscribe(queue, prefetch=10) as inbox:
            while True:
                for delivery in await inbox.receive():
                    packet_id = UUID(delivery.message.message_id)
                    self.handled[packet_id] += 1
                    self.keys.add(delivery.routing_key)
                    await self.house.agents.report(agent_id, [packet_id])
                    await inbox.ack(delivery)


async def exists(house: House, queue: str) -> bool:
    try:
        await house.agents.bus.depth(queue)
    except QueueMissing:
        return False
    return True


async def neighbour(agent_id: str = "neighbour") -> None:
    """Register an agent on the host, so that its queues are there."""
    await add_agent(AgentForm(agent_id, "r", "s", "", "IDEA", (), None, host=HOST))


@pytest.mark.long
async def test_an_agent_moves_to_a_host_and_back_under_load(running: House) -> None:
    """With its session open: each packet is handled once, at the old place or at the new one."""
    await neighbour()
    old, new, sent = Process(running), Process(running), list[UUID]()
    moving = asyncio.Event()

    async def send() -> None:
        while not moving.is_set() or len(sent) < 30:
            packet = make_packet("red-1", make_idea(), ("blue-1",), parent=running.opening)
            await running.agents.publish(packet)
            sent.append(packet.packet_id)

    async def move(place: Place) -> None:
        moving.clear()
        sending = asyncio.create_task(send())
        await until(is_under_way)
        await move_agent("blue-1", place, PATIENCE)
        moving.set()
        await sending
        await until(running.has_nothing_open, 60)

    async def is_under_way() -> bool:
        return len(old.handled) + len(new.handled) >= before + 5

    before = 0
    async with old.at("blue-1", None), new.at("blue-1", HOST):
        await move(Place(HOST))
        assert (await read_registry(running.pool))["blue-1"].host == HOST
        assert not await exists(running, agent_queue("blue-1", urgent=False)), "it is empty, and deleted"
    assert old.handled and new.handled and new.keys <= {host_key(HOST, "blue-1", urgent) for urgent in (True, False)}
    before = len(sent)
    async with new.at("blue-1", HOST):
        moving.clear()
        sending = asyncio.create_task(send())
        await until(is_under_way)
        leaving = asyncio.create_task(move_agent("blue-1", Place(None), PATIENCE))

        async def has_own_queues() -> bool:
            return await exists(running, agent_queue("blue-1", urgent=False))

        await until(has_own_queues)
        async with old.at("blue-1", None):
            await leaving
            moving.set()
            await sending
            await until(running.has_nothing_open, 60)
    moved = (await read_registry(running.pool))["blue-1"]
    assert (moved.host, moved.via) == (None, frozenset())
    assert old.handled + new.handled == Counter(sent), "nothing is lost, and nothing comes twice"
    assert await running.count("packet_events", "to_state = 'DEAD_LETTERED'") == 0


async def test_a_move_waits_for_what_the_old_place_holds(running: House) -> None:
    await neighbour()
    held = make_packet("red-1", make_idea(), ("blue-1",), parent=running.opening)
    await running.agents.publish(held)
    await until(running.is_logged(held.packet_id))
    with pytest.raises(ServiceAway, match="after 0 s 1 delivery at its old place did not end"):
        await move_agent("blue-1", Place(HOST), timedelta(0))
    assert await exists(running, agent_queue("blue-1", urgent=False))
    later = make_packet("red-1", make_idea(), ("blue-1",), parent=running.opening)
    await running.agents.publish(later)
    await until(running.is_logged(later.packet_id))
    new = Process(running)
    async with new.at("blue-1", HOST):
        await until(running.has_come_to("ARCHIVED", later.packet_id, "blue-1"))
    assert set(new.handled) == {later.packet_id}
    assert await count_left_behind(running.pool, "blue-1") == 1
    (delivery,) = await running.agents.receive("blue-1")
    await running.agents.report("blue-1", [UUID(delivery.message.message_id)])
    await move_agent("blue-1", Place(HOST), PATIENCE)
    assert not await exists(running, agent_queue("blue-1", urgent=True))


async def test_a_dead_letter_of_a_host_is_requeued_to_its_recipient(running: House) -> None:
    await neighbour()
    await move_agent("blue-1", Place(HOST), PATIENCE)
    sent = make_packet("red-1", make_idea(), ("blue-1",), parent=running.opening)
    await running.agents.publish(sent)
    async with running.agents.bus.subscribe(host_queue(HOST, urgent=False)) as inbox:
        (delivery,) = await inbox.receive()
        await inbox.nack(delivery, requeue=False)
        await until(running.has_come_to("DEAD_LETTERED", sent.packet_id, "blue-1"))
        (row,) = await dead_rows(Filter(SESSION), limit=10)
        assert (row["packet_id"], row["recipient"]) == (sent.packet_id, "blue-1")
        (again,) = await settle_dead(ReceiptKind.REQUEUE, [str(sent.packet_id)], Filter())
        assert (again["state"], again["attempt"]) == ("ROUTED", 2)
        (delivery,) = await inbox.receive()
        assert delivery.routing_key == host_key(HOST, "blue-1", urgent=False)
        await inbox.ack(delivery)
    await running.agents.report("blue-1", [sent.packet_id], attempt=2)
    await until(running.has_nothing_open)


@pytest.mark.long
async def test_the_neighbours_of_a_revoked_agent_go_on(running: House) -> None:
    await neighbour()
    await move_agent("blue-1", Place(HOST), PATIENCE)
    remarks = await revoke_agent("neighbour")
    assert any("stays" in remark for remark in remarks), "the broker user of the host"
    registry = await read_registry(running.pool)
    assert (registry["neighbour"].is_revoked, registry["blue-1"].is_revoked) == (True, False)
    sent = make_packet("red-1", make_idea(), ("blue-1",), parent=running.opening)
    process = Process(running)
    async with process.at("blue-1", HOST):
        await running.agents.publish(sent)
        await until(running.has_come_to("ARCHIVED", sent.packet_id, "blue-1"))


@pytest.mark.long
async def test_agents_and_teams_of_a_file_share_a_host(running: House, tmp_path: Path) -> None:
    (tmp_path / "crowd_of_hosts.py").write_text(CROWD)
    names = tmp_path / "names.txt"
    names.write_text("# all of them\ncrowd_of_hosts:alone  # one\n\ncrowd_of_hosts:team\n")
    assert names_in(names) == ["crowd_of_hosts:alone", "crowd_of_hosts:team"]
    added = await add_agents_of_code(names_in(names), HOST)
    assert added.agents == ["alone", "one", "two"]
    registry = await read_registry(running.pool)
    assert {registry[name].host for name in added.agents} == {HOST}
    assert not await exists(running, agent_queue("alone", urgent=False)) and await exists(
        running, host_queue(HOST, True)
    )
    with pytest.raises(InputUnusable, match="judge judges"):
        await add_agents_of_code(["crowd_of_hosts:judge"], HOST)
    await add_agents_of_code(["crowd_of_hosts:judge"], HOST, allow_shared=True)
    with pytest.raises(InputUnusable, match="alone runs on host h0: move it with `apc agent move alone --own-queues`"):
        await add_agents_of_code(["crowd_of_hosts:alone"])
    rows = {row["agent_id"]: row for row in json.loads(await run(tmp_path, "agent", "list", "--json"))}
    assert (rows["two"]["host"], rows["two"]["is_alive"], rows["blue-1"]["host"]) == (HOST, False, None)
    async with running.agents.bus.subscribe(host_queue(HOST, urgent=True)):
        await until(lambda: is_here(running, "two", is_host_present=True))
        rows = {row["agent_id"]: row for row in json.loads(await run(tmp_path, "agent", "list", "--json"))}
        assert rows["two"]["is_alive"], "it has said nothing, and its host consumes"
        assert not any("host" in one.finding for one in await look_at_agents(running.pool, {}))
    await until(lambda: is_here(running, "two", is_host_present=False))
    (finding, *_) = await look_at_agents(running.pool, {})
    gone = r"host h0: nobody consumes its queues, gone for \d+ s, so that 4 agents cannot work"
    assert re.fullmatch(gone, finding.finding)


async def is_here(running: House, agent_id: str, *, is_host_present: bool) -> bool:
    listed = {one.agent_id: one for one in await list_registered(running.pool)}
    return listed[agent_id].is_host_present is is_host_present


async def test_a_table_of_hosted_agents_has_one_line_a_row_at_80_columns(running: House, tmp_path: Path) -> None:
    await neighbour("hosted-neighbour")
    code, told = await asyncio.to_thread(ApcCommand(tmp_path).at_terminal, "agent", "list", given=addresses())
    assert code == 0, told
    lines = {line.split()[0]: line for line in told.splitlines() if line.strip()}
    assert (await read_registry(running.pool)).keys() <= lines.keys(), told
    assert HOST in lines["hosted-neighbour"].split(), told


def addresses() -> dict[str, str]:
    """Return broker and database of the house as settings of a command."""
    return {name: os.environ[name] for name in ("APC_AMQP_URL", "APC_DATABASE_URL")}


async def run(folder: Path, *arguments: str) -> str:
    """Return what a command of the operator says."""
    done = await asyncio.to_thread(ApcCommand(folder), *arguments, given=addresses())
    assert done.returncode == 0, done.stderr
    return done.stdout

"""The gate of shard 0 looks for hosts: changes alone are in the log, whichever process holds the shard."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import pytest
from tests.orchestrator.conftest import House
from tests.orchestrator.registering.test_speaks import register
from tests.support.traffic.packets import make_start

from apc_bus.in_memory import InMemoryBus
from apc_bus.topology import AgentQueues, build_topology, gate_queue, host_queue
from apc_contracts import PacketType
from apc_log.queries.agents import list_registered, read_signs
from apc_log.registry import read_hosts
from apc_orchestrator.judging import memory
from apc_orchestrator.shard import presence

CHANGES = """
SELECT change ->> 'host' AS host, change ->> 'presence' AS presence FROM apc_log.registry_events
WHERE change ->> 'action' = 'host' ORDER BY seq
"""
LAST = "SELECT next_seq - 1 FROM apc_log.shards WHERE shard = 0"


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int | None]]:
    """Look a hundred times a second; every answer of the broker is here, in order."""
    monkeypatch.setattr(presence, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(presence, "RETURN_SECONDS", 0.0)
    answers: list[dict[str, int | None]] = []
    ask = InMemoryBus.consumers

    async def consumers(self: InMemoryBus, queues: Sequence[str]) -> dict[str, int | None]:
        answers.append(await ask(self, queues))
        return answers[-1]

    monkeypatch.setattr(InMemoryBus, "consumers", consumers)
    return answers


async def place(house: House, agent: str, host: str = "h0") -> None:
    """Let an agent run on a host, whose queues are made."""
    house.broker.apply(build_topology(1, [AgentQueues(agent, "watch", frozenset(PacketType), host=host)]))
    await register(house, agent, host=host, broker_user=f"host.{host}", allow_shared=True)


@asynccontextmanager
async def host_process(house: House, host: str = "h0") -> AsyncIterator[None]:
    async with house.client(f"host.{host}").subscribe(host_queue(host, urgent=True)):
        yield


def changed(house: House, *presences: str) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return [row["presence"] for row in await house.pool.fetch(CHANGES)] == list(presences)

    return holds


async def looked(house: House, looks: list[dict[str, int | None]], times: int = 5) -> None:
    """Wait for some more looks that are over."""
    goal = len(looks) + times

    async def holds() -> bool:
        return len(looks) >= goal

    await house.until(holds)


async def test_a_host_appears_and_is_gone_once_each(house: House, looks: list[dict[str, int | None]]) -> None:
    async with house.persister(), house.gate():
        await house.register()
        await place(house, "sentinel")
        await looked(house, looks)
        assert await read_hosts(house.pool) == {}, "it never appeared"
        async with host_process(house):
            await house.until(changed(house, "appeared"))
            alive = {one.agent_id: one.is_host_present for one in await list_registered(house.pool)}
            assert alive["sentinel"] is True and alive["red-1"] is None
            await looked(house, looks)
        await house.until(changed(house, "appeared", "gone"))
        await looked(house, looks)
        assert await changed(house, "appeared", "gone")()
        async with host_process(house):
            await house.until(changed(house, "appeared", "gone", "appeared"))


async def test_thousands_of_idle_agents_log_nothing(house: House, looks: list[dict[str, int | None]]) -> None:
    async with house.persister(), house.gate():
        await house.register()
        for agent in ("red-1", "blue-1", "sentinel"):
            await place(house, agent)
        async with host_process(house):
            await house.until(changed(house, "appeared"))
            await house.quiet()
            before = await house.pool.fetchval(LAST)
            await looked(house, looks, 100)
            await house.quiet()
            assert await house.pool.fetchval(LAST) == before
            assert await read_signs(house.pool) == {}, "nobody has said anything"


async def test_a_takeover_repeats_nothing_and_takes_nobody_for_gone(
    house: House, looks: list[dict[str, int | None]]
) -> None:
    async with house.persister(), AsyncExitStack() as process:
        async with house.gate():
            await house.register()
            await place(house, "sentinel")
            await process.enter_async_context(host_process(house))
            await house.until(changed(house, "appeared"))
        for _ in range(3):
            async with house.gate():
                await looked(house, looks)
                assert await changed(house, "appeared")()
        await process.aclose()
        async with house.gate():
            await house.until(changed(house, "appeared", "gone"))
        async with house.gate():
            await looked(house, looks)
            assert await changed(house, "appeared", "gone")()


async def test_a_host_whose_last_agent_left_is_gone_when_it_ends(house: House) -> None:
    async with house.persister(), house.gate():
        await house.register()
        await place(house, "sentinel")
        async with host_process(house):
            await house.until(changed(house, "appeared"))
            await register(house, "sentinel", speaks=("apc/1.0", "apc/1.1"))
        await house.until(changed(house, "appeared", "gone"))


async def test_a_broker_that_knows_no_consumer_at_all_says_nothing_of_hosts(
    house: House, looks: list[dict[str, int | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As amid an election of a leader: not even the gate consumes its own queue, by what it says."""
    ask = InMemoryBus.consumers

    async def none(self: InMemoryBus, queues: Sequence[str]) -> dict[str, int | None]:
        return dict.fromkeys(await ask(self, queues), 0)

    async with house.persister(), house.gate():
        await house.register()
        await place(house, "sentinel")
        async with host_process(house):
            await house.until(changed(house, "appeared"))
            monkeypatch.setattr(presence, "RETURN_SECONDS", 1_000.0)
            monkeypatch.setattr(InMemoryBus, "consumers", none)
            await looked(house, looks, 10)
            monkeypatch.setattr(InMemoryBus, "consumers", ask)
            await looked(house, looks, 10)
            assert await changed(house, "appeared")()
            assert looks[-1][gate_queue(0)] == 1
            monkeypatch.setattr(presence, "RETURN_SECONDS", 0.0)
        await house.until(changed(house, "appeared", "gone"))


async def test_hosts_have_time_to_come_back_to_a_broker_that_the_gate_lost_too(
    house: House, looks: list[dict[str, int | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house.persister():
        async with house.gate():
            await house.register()
            await place(house, "sentinel")
            async with host_process(house):
                await house.until(changed(house, "appeared"))
                monkeypatch.setattr(presence, "RETURN_SECONDS", 1_000.0)
        async with house.gate():
            await looked(house, looks, 10)
            assert await changed(house, "appeared")()
            monkeypatch.setattr(presence, "RETURN_SECONDS", 0.0)
            await house.until(changed(house, "appeared", "gone"))


async def test_signs_of_life_are_reported_again_after_a_while(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a packet and by a receipt; what was reported is not reported again."""
    monkeypatch.setattr(memory, "REPORT_INTERVAL", timedelta(0))
    async with house.persister(), house.gate():
        await house.open(make_start())
        await house.handle_all()

        async def are_heard() -> bool:
            return {"librarian", "red-1", "blue-1", "sentinel"} <= (await read_signs(house.pool)).keys()

        await house.until(are_heard)
        signs = await read_signs(house.pool)
        await house.quiet()
        assert await read_signs(house.pool) == signs
    assert "orchestrator" not in signs

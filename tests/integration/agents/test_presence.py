"""Hosts that are killed, frozen and replaced, over a real broker: the log tells once of each end and each return."""

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.integration.agents.test_hosts import HOST, events, host, move
from tests.integration.agents.worker_process import HostProcess
from tests.integration.conftest import House
from tests.support.traffic import until

from apc_bus.settings import PersisterSettings
from apc_log.queries.agents import list_registered
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.verification.verify import verify_shard

__all__ = ["host"]

CHANGES = """
SELECT change ->> 'presence' AS presence FROM apc_log.registry_events WHERE change ->> 'action' = 'host' ORDER BY seq
"""


def changed(house: House, *presences: str) -> Callable[[], Awaitable[bool]]:
    """Return a condition: these are the changes of the host in the log, and no others."""

    async def holds() -> bool:
        return [row["presence"] for row in await house.pool.fetch(CHANGES)] == list(presences)

    return holds


async def alive(house: House) -> list[bool | None]:
    """Return whether the host of its agents is here, by the log."""
    return [one.is_host_present for one in await list_registered(house.pool) if one.host == HOST]


@pytest.mark.long
async def test_a_host_that_is_killed_is_gone_and_comes_back(
    house: House, host: HostProcess, amqp_vhost_url: str
) -> None:
    async with house.persister(), house.gate():
        await house.open_session()
        await move(house, amqp_vhost_url)
        async with host.running() as process:
            await until(changed(house, "appeared"), 60)
            assert await alive(house) == [True, True]
            process.kill()
            await process.wait()
            await until(changed(house, "appeared", "gone"), 30)
            assert await alive(house) == [False, False]
        async with host.running():
            await until(changed(house, "appeared", "gone", "appeared"), 60)
            assert await alive(house) == [True, True]
        key = load_signer(PersisterSettings()).public_key(0)
        async with house.pool.acquire() as connection:
            assert (await verify_shard(connection, 0, key)).findings == []


@pytest.mark.long
async def test_a_host_that_is_frozen_is_gone_until_it_goes_on(
    house: House, host: HostProcess, amqp_vhost_url: str
) -> None:
    async with house.persister(), house.gate():
        await house.open_session()
        await move(house, amqp_vhost_url)
        async with host.running() as process:
            await until(changed(house, "appeared"), 60)
            process.send_signal(signal.SIGSTOP)
            try:
                await until(changed(house, "appeared", "gone"), 60)
            finally:
                process.send_signal(signal.SIGCONT)
            await until(changed(house, "appeared", "gone", "appeared"), 60)


@pytest.mark.long
async def test_a_host_outlives_gates_and_its_own_replacement(
    house: House, host: HostProcess, amqp_vhost_url: str, tmp_path: Path
) -> None:
    """A second gate takes over; then the first process of the host ends, and its standby goes on."""
    async with house.persister():
        async with house.gate() as (first, running), house.gate() as (second, _):
            await house.open_session()
            await move(house, amqp_vhost_url)
            async with host.running() as old:
                await until(changed(house, "appeared"), 60)
                running.stop.set()
                await running.task
                await until(lambda: any(state.is_active for state in second.shards), 60)
                async with host.running() as standby:
                    # The broker's count of consumers has the active one alone.
                    await until(lambda: len(events(tmp_path, "host_started")) == 2, 60)
                    old.terminate()
                    await old.wait()
                    assert await changed(house, "appeared")()
                    standby.kill()
                    await standby.wait()
                    await until(changed(house, "appeared", "gone"), 30)
        assert not any(state.is_active for state in first.shards)

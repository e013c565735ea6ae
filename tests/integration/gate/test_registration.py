"""Contracts and schemas reach every shard: shard 0 decides, then the others; the command names those that are away."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import House
from tests.support.apc_command import ApcCommand

from apc_client import registration
from apc_client.errors import ShardsUnconfirmed
from apc_client.registration import register_contract, register_schemas
from apc_client.sending import until
from apc_contracts.contract.contract import task_contract

SHARDS = "SELECT agent_id, array_agg(shard ORDER BY shard) AS shards FROM apc_log.registry_events GROUP BY agent_id"


@pytest.fixture
def shards() -> int:
    """Two: one may be away."""
    return 2


def own(**fields: Any) -> bytes:
    return json.dumps(json.loads(task_contract().body) | {"name": "own"} | fields).encode()


def time_runs_out(monkeypatch: pytest.MonkeyPatch, *waits: bool) -> None:
    """Let the next waits for shards end as the condition is at once (True), or wait as ever (False)."""
    left = iter(waits)

    async def wait(condition: Callable[[], Awaitable[bool]], patience: timedelta) -> None:
        if not next(left, False):
            await until(condition, patience)
        elif not await condition():
            raise TimeoutError

    monkeypatch.setattr(registration, "until", wait)


async def test_a_shard_that_is_away_is_named_and_repeating_is_safe(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While shard 0 is away nothing is sent to shard 1; what shard 0 has accepted waits in the queue of shard 1."""
    bus, body = house.agents.bus, own()
    async with house.persister():
        async with house.gate(serve_shards=[1]):
            time_runs_out(monkeypatch, True)
            with pytest.raises(ShardsUnconfirmed, match=r"contract/own was sent, .* after 10 s: 0, 1\. See"):
                await register_contract(bus, house.pool, 2, body, "own.json")
        async with house.gate(serve_shards=[0]):
            time_runs_out(monkeypatch, False, True, False, True, False, True)
            for _ in range(2):
                with pytest.raises(ShardsUnconfirmed, match=r"contract/own was sent, .*: 1\. See") as told:
                    await register_contract(bus, house.pool, 2, body, "own.json")
            with pytest.raises(ShardsUnconfirmed, match=r"schema/note/1 was sent, .*: 1\. See"):
                await register_schemas(bus, house.pool, 2, {"note/1": {"type": "object"}})
        async with house.gate():
            found = await register_contract(bus, house.pool, 2, body, "own.json")
            await register_schemas(bus, house.pool, 2, {"note/1": {"type": "object"}})
        rows = {row["agent_id"]: row["shards"] for row in await house.pool.fetch(SHARDS)}
    assert told.value.exit_code == 4
    assert found.revision == 1
    assert rows == {"contract/own": [0, 1], "schema/note/1": [0, 1]}


@pytest.mark.long
async def test_the_commands(house: House, postgres_url: str, tmp_path: Path) -> None:
    apc = ApcCommand(tmp_path)
    given = {
        "APC_AMQP_URL": house.settings.amqp_url.get_secret_value(),
        "APC_DATABASE_URL": postgres_url,
        "APC_SHARDS": "2",
    }

    async def run(*arguments: str, stdin: bytes = b"") -> Any:
        return await asyncio.to_thread(apc, "contract", *arguments, stdin=stdin.decode(), given=given)

    second = own(comments={"loops": "stricter"})
    async with house.persister(), house.gate():
        first = [await run("register", "-", stdin=own()) for _ in range(2)]
        changed = await run("register", "-", stdin=second)
        broken = await run("register", "-", stdin=own(speaks=["apc/9"]))
        huge = await run("register", "-", stdin=b" " * 130_000)
        listed, shown, absent = (
            await run("list", "--json"),
            await run("show", "own", "--full"),
            await run("show", "tusk"),
        )
    assert [one.returncode for one in first] == [0, 0], first[0].stderr
    assert first[0].stdout == first[1].stdout and "contract own is registered, revision 1, sha256" in first[0].stdout
    assert "contract own is registered, revision 2" in changed.stdout, changed.stderr
    assert (broken.returncode, broken.stderr) == (
        2,
        "apc: contract - invalid at speaks[0]: this version speaks apc/1.0 and apc/1.1\n",
    )
    assert "at most 122880 bytes: shorten it" in huge.stderr
    assert [(row["contract"], row["revision"]) for row in json.loads(listed.stdout)] == [("own", 2)]
    assert shown.stdout.encode() == second + b"\n"
    assert absent.returncode == 2 and "there is no contract 'tusk'; there are: apc-1.0, own, task" in absent.stderr

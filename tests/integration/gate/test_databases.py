"""Two shards in two databases: gates and log writers over a real broker."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from subprocess import CompletedProcess

import pytest
from pydantic import SecretStr
from tests.integration.conftest import House
from tests.support.apc_command import ApcCommand
from tests.support.log import replay_everything
from tests.support.traffic import ScriptedWorker, make_idea, make_packet, make_start, until

from apc_bus.settings import DatabaseSettings, PersisterSettings
from apc_client import ClientSession, connect
from apc_contracts import Packet
from apc_contracts.identity.ids import shard_of
from apc_log.placement import LogDatabases, open_databases
from apc_persister.database.several import place_shard
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.verification.verify import verify_shard

Apc = Callable[..., Awaitable[CompletedProcess[str]]]
OPEN = "SELECT count(*) = 1 AND sum(open_deliveries) = 0 FROM apc_log.sessions WHERE shard = $1"
ORDER = "SELECT packet_id FROM apc_log.agent_packets WHERE session_id = $1 AND packet_type = 'IDEA' ORDER BY seq"
NOTES = "SELECT note FROM apc_log.log_checkpoints ORDER BY shard, tree_size"
EPOCH = "SELECT epoch FROM apc_log.shards WHERE shard = $1"
HAS_FDW = "SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'postgres_fdw')"
SESSIONS = [next(name for number in range(99) if shard_of(name := f"session-{number}", 2) == one) for one in (0, 1)]


@pytest.fixture
def shards() -> int:
    """One in each database."""
    return 2


@pytest.fixture
async def databases(house: House, east_url: str) -> AsyncIterator[LogDatabases]:
    """Home and east, where shard 1 is."""
    async with open_databases(house.pool, {"east": east_url}, max_size=8) as found:
        async with house.pool.acquire() as home, found.pools["east"].acquire() as east:
            await place_shard({"home": home, "east": east}, 1, "east")
        yield found


@pytest.fixture
def apc(house: House, tmp_path: Path, postgres_url: str, east_url: str) -> Apc:
    """Runs `apc` with this broker and these databases."""
    given = {
        "APC_AMQP_URL": house.settings.amqp_url.get_secret_value() if house.settings.amqp_url else "",
        "APC_DATABASE_URL": postgres_url,
        "APC_DATABASES": json.dumps({"east": east_url}),
        "APC_SHARDS": "2",
        "APC_LOG_KEY": os.environ["APC_LOG_KEY"],
    }

    async def run(*arguments: str, **other: str) -> CompletedProcess[str]:
        return await asyncio.to_thread(ApcCommand(tmp_path), *arguments, given=given | other)

    return run


async def test_shards_are_placed_and_listed_by_commands(house: House, east_url: str, apc: Apc) -> None:
    done = await apc("shard", "place", "1", "--database", "east")
    assert (done.returncode, done.stdout) == (0, "shard 1 is in east, and was in home\n"), done
    assert (await apc("migrate")).stdout == "2 databases have the schema\n"
    (home, east) = json.loads((await apc("shard", "list", "--json")).stdout)
    assert (home["database"], east["database"]) == ("home", "east")
    for refused, said in ((("0", "east"), "shard 0 stays at home"), (("1", "west"), "APC_DATABASES names home")):
        done = await apc("shard", "place", refused[0], "--database", refused[1])
        assert done.returncode and said in done.stderr and len(done.stderr.splitlines()) == 1, done
    assert await databases_of(apc) == [("ok", "home, east have the shards that home says")]
    await house.pool.execute("UPDATE apc_log.shard_places SET moving_to = 'home'")
    assert await databases_of(apc) == [("warning", "shard 1 is on its way from east to home, and nobody serves it")]
    await house.pool.execute("UPDATE apc_log.shard_places SET moving_to = NULL")
    (_, unknown) = await databases_of(apc, APC_DATABASES=json.dumps({"west": east_url}))
    assert unknown == ("wrong", "the URL of west leads to east")
    away = json.dumps({"east": "postgresql://postgres@127.0.0.1:1/nowhere"})
    (home, east) = json.loads((await apc("shard", "list", "--json", APC_DATABASES=away)).stdout)
    assert (home["state"], east["state"]) == ("without a gate", "away")
    done = await apc("shard", "place", "1", "--database", "home", APC_DATABASES=away)
    assert done.returncode and "database 'east' does not answer" in done.stderr, done
    (found,) = await databases_of(apc, APC_DATABASES=away)
    assert found[0] == "wrong" and found[1].startswith("east does not answer") and found[1].endswith("1 shard is in it")
    assert (await apc("shard", "place", "1", "--database", "home")).returncode == 0


async def databases_of(apc: Apc, **settings: str) -> list[tuple[str, str]]:
    """Return what `apc doctor` says of databases."""
    findings = json.loads((await apc("doctor", "--json", **settings)).stdout)
    return [(one["status"], one["finding"]) for one in findings if one["check"] == "databases"]


async def test_a_client_knows_the_sessions_of_every_database(
    house: House, databases: LogDatabases, postgres_url: str, east_url: str, apc: Apc
) -> None:
    if not await house.pool.fetchval(HAS_FDW):
        pytest.skip("reading over several databases needs a PostgreSQL with postgres_fdw")
    house = replace(house, databases=databases)
    assert (await apc("migrate")).returncode == 0
    async with house.persister(), house.gate():
        await house.agents.register()
        done = await apc("agent", "add", "starter", "--role", "client", "--swarm", "clients", "--rights", "operate")
        assert done.returncode == 0, done.stderr
        settings = DatabaseSettings(
            database_url=SecretStr(postgres_url), databases={"east": SecretStr(east_url)}, _env_file=None
        )
        bus = house.settings.model_copy(update={"shards": 2})
        async with connect(bus=bus, database=settings) as client:
            for session_id in SESSIONS:
                await house.agents.publish(make_start(session_id))
                session = client.session(session_id)

                async def is_known(session: ClientSession = session) -> bool:
                    return await session.status() is not None

                await until(is_known)


def ideas(opening: Packet, session_id: str, count: int = 3) -> list[Packet]:
    return [
        make_packet("red-1", make_idea(), ("sentinel",), parent=opening, session_id=session_id) for _ in range(count)
    ]


async def test_sessions_of_two_databases_go_on_after_a_takeover(house: House, databases: LogDatabases) -> None:
    house = replace(house, databases=databases)
    pools = [house.pool, databases.pools["east"]]
    houses = [house, replace(house, pool=pools[1])]
    sent: list[list[Packet]] = [[], []]
    openings = [make_start(session_id) for session_id in SESSIONS]

    async def send(*, is_first: bool = False) -> None:
        for shard, opening in enumerate(openings):
            packets = ideas(opening, SESSIONS[shard])
            await house.agents.publish(*([opening] if is_first else []), *packets)
            sent[shard] += packets
            await until(houses[shard].is_logged(*(packet.packet_id for packet in sent[shard])))

    async def is_quiet() -> bool:
        return all([await pool.fetchval(OPEN, shard) for shard, pool in enumerate(pools)])

    workers = [ScriptedWorker(house.agents.bus, agent) for agent in house.agents.cast]
    for is_first in (True, False):  # a new gate and log writer take over what the former left
        async with house.persister(), house.gate() as (gate, _):
            if is_first:
                await house.agents.register()
            async with workers[0].working(), workers[1].working(), workers[2].working(), workers[3].working():
                await send(is_first=is_first)
                await until(is_quiet)
            assert gate.is_ready
    for shard, pool in enumerate(pools):
        assert [row[0] for row in await pool.fetch(ORDER, SESSIONS[shard])] == [one.packet_id for one in sent[shard]]
        assert await pool.fetchval("SELECT count(*) FROM apc_log.agent_packets WHERE shard <> $1", shard) == 0
        assert await pool.fetchval("SELECT count(*) FROM apc_log.packet_conflicts") == 0
        assert await pool.fetchval(EPOCH, shard) == 2
        async with pool.acquire() as connection:
            report = await verify_shard(connection, shard, load_signer(PersisterSettings()).trusted(shard)[0])
        assert report.findings == [] and report.size


STEPS = ("after_leave", "after_close", "after_copy", "after_open", "after_switch")


@pytest.mark.long
async def test_a_filled_shard_moves_though_each_step_is_killed(
    house: House, postgres_url: str, east_url: str, apc: Apc, tmp_path: Path
) -> None:
    """Packets of one session come before, while and after its shard moves: none is lost or doubled, order is kept."""
    opening, sent = make_start(SESSIONS[1]), list[Packet]()
    environment = os.environ | {
        "APC_AMQP_URL": house.settings.amqp_url.get_secret_value() if house.settings.amqp_url else "",
        "APC_DATABASE_URL": postgres_url,
        "APC_DATABASES": json.dumps({"east": east_url}),
        "APC_SHARDS": "2",
    }

    async def send() -> None:
        packets = ideas(opening, SESSIONS[1])
        await house.agents.publish(*packets)
        sent.extend(packets)

    async def move_until(step: str) -> int:
        command = [sys.executable, "-m", "apc_cli", "shard", "move", "1", "--database", "east"]
        running = await asyncio.create_subprocess_exec(*command, env=environment | {"APC_CRASH_AT": f"move.{step}"})
        return await running.wait()

    async with AsyncExitStack() as stack:
        databases = await stack.enter_async_context(open_databases(house.pool, {"east": east_url}, max_size=8))
        east = databases.pools["east"]
        house = replace(house, databases=databases)
        await stack.enter_async_context(house.persister())
        gate, _ = await stack.enter_async_context(house.gate())
        await house.agents.register()
        for agent in house.agents.cast:
            await stack.enter_async_context(ScriptedWorker(house.agents.bus, agent).working())
        await house.agents.publish(opening)
        await send()
        await until(house.is_logged(opening.packet_id, *(packet.packet_id for packet in sent)))
        for step in STEPS:
            assert (await asyncio.gather(move_until(step), send()))[0] == -SIGKILL
        done = await apc("shard", "move", "1", "--database", "east")
        assert (done.returncode, done.stdout) == (0, "shard 1 is in east\n"), done
        await send()
        await until(replace(house, pool=east).is_logged(*(packet.packet_id for packet in sent)))
        row = json.loads((await apc("shard", "list", "--json")).stdout)[1]
        assert (row["database"], row["state"], row["epoch"]) == ("east", "served", 2)
        done = await apc("shard", "move", "1", "--to", row["orchestrator"])
        assert done.returncode == 0 and "holds shard 1 already" in done.stdout, done
        assert gate.is_ready

        async def is_quiet() -> bool:
            return bool(await east.fetchval(OPEN, 1))

        await until(is_quiet)
        assert [row[0] for row in await east.fetch(ORDER, SESSIONS[1])] == [packet.packet_id for packet in sent]
        assert await east.fetchval("SELECT count(*) FROM apc_log.packet_conflicts") == 0
        async with east.acquire() as connection:
            report = await verify_shard(connection, 1, load_signer(PersisterSettings()).trusted(1)[0])
        assert report.findings == []
        done = await apc("shard", "move", "1", "--database", "home")
        assert done.returncode and "shard 1 was in home before" in done.stderr, done
        await replay_everything(east)
        held = tmp_path / "checkpoints.txt"
        notes = [row[0] for pool in (house.pool, east) for row in await pool.fetch(NOTES)]
        held.write_text("".join(f"{note}\n" for note in notes))
        await verify_together_and_alone(apc, held, postgres_url, east_url)


async def verify_together_and_alone(apc: Apc, held: Path, home: str, east: str) -> None:
    """Verify both databases as one log, and one of them alone, which says what it has not compared."""
    for url, others in ((home, json.dumps({"east": east})), (east, "")):
        given = {"APC_DATABASE_URL": url, "APC_DATABASES": others}
        done = await apc("log", "verify", "--checkpoints", str(held), **given)
        assert done.returncode == 0 and "NOT WHOLE" not in done.stderr, done
        is_left_out = "not compared here: 1 shard with checkpoints, such as" in done.stderr
        assert is_left_out == (others == ""), done

"""`apc doctor`: each thing is broken for real, and found, with its fix; nothing else is reported as wrong."""

import ast
import inspect
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import aio_pika
import asyncpg
import pytest
from msgspec.structs import replace
from tests.support.apc_command import ApcCommand
from tests.support.log import LogBench, ScriptedGate, packet_entry

from apc_bus.in_memory import InMemoryBroker
from apc_bus.rabbit import apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings
from apc_bus.topology import DEAD_QUEUE, build_topology, gate_queue, log_queue
from apc_cli.doctor import Finding, Status, examination, examine
from apc_cli.doctor.log import look_at_database, now
from apc_log.batch import LOG_BATCH_TYPE, encode

NO_BROKER = "amqp://guest:guest@127.0.0.1:9/"
NO_DATABASE = "postgresql://someone:secret@127.0.0.1:9/apc"


@pytest.fixture
async def healthy(amqp_vhost_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A broker with the topology and a migrated database, named in the environment; no service runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("APC_AMQP_URL", amqp_vhost_url)
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    await apply_rabbit(amqp_vhost_url, build_topology())


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A superuser's connection to the database that is looked at."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


async def found(status: Status) -> list[Finding]:
    """Findings of one status; each but `ok` has a fix."""
    findings = await examine()
    assert all(finding.fix for finding in findings if finding.status is not Status.OK)
    return [finding for finding in findings if finding.status is status]


async def only_wrong() -> Finding:
    """Return the one thing that is wrong."""
    [finding] = await found(Status.WRONG)
    return finding


async def test_nothing_is_wrong_with_a_healthy_system(healthy: None) -> None:
    assert await found(Status.WRONG) == []
    warnings = {finding.check for finding in await found(Status.WARNING)}
    assert warnings == {"gate", "log", "dead letters", "permissions", "message size"}, (
        "no service runs, one user for all"
    )
    assert {"broker", "topology", "database", "durability", "clock", "schema", "guard"} <= {
        finding.check for finding in await found(Status.OK)
    }


async def test_a_broker_node_that_is_away(healthy: None, amqp_vhost_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_AMQP_URL", f"{amqp_vhost_url},{NO_BROKER}")
    finding = await only_wrong()
    assert finding.check == "broker"
    assert "127.0.0.1:9" in finding.finding


async def test_a_queue_that_is_missing(healthy: None, amqp_vhost_url: str) -> None:
    connection = await aio_pika.connect(amqp_vhost_url)
    await (await connection.channel()).queue_delete(log_queue(0))
    await connection.close()
    finding = await only_wrong()
    assert (finding.check, finding.finding) == ("topology", f"{log_queue(0)} is missing")
    assert finding.fix == "apc topology apply"


@pytest.mark.long
async def test_a_broker_without_any_topology(
    amqp_vhost_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line counts what is missing, and no check calls a queue that is not there fine."""
    monkeypatch.setenv("APC_AMQP_URL", amqp_vhost_url)
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    findings = await examine()
    [missing] = [one for one in findings if one.status is Status.WRONG]
    assert re.fullmatch(
        r"\d+ exchanges and queues are missing: apc\.\S+, apc\.\S+, apc\.\S+ and \d+ more", missing.finding
    )
    assert missing.fix == "apc topology apply"
    [gate] = [one for one in findings if one.check == "gate"]
    assert gate.status is Status.WARNING
    assert gate.finding.endswith("which is missing: shard 0")
    assert not {one.check for one in findings if one.status is Status.OK} & {"gate", "log", "topology"}


async def test_a_queue_with_other_arguments(healthy: None, amqp_vhost_url: str) -> None:
    connection = await aio_pika.connect(amqp_vhost_url)
    channel = await connection.channel()
    await channel.queue_delete(gate_queue(0))
    await channel.declare_queue(gate_queue(0), durable=True, arguments={"x-queue-type": "quorum"})
    await connection.close()
    finding = await only_wrong()
    assert finding.check == "topology"
    assert gate_queue(0) in finding.finding
    assert "inequivalent arg" in finding.finding


async def test_log_batches_that_nobody_writes(healthy: None) -> None:
    bus = await connect_rabbit(BusSettings(), purpose="test")
    gate = ScriptedGate(bus)
    await gate.open()
    await gate.log([packet_entry()])
    finding = await only_wrong()
    assert finding.check == "log"
    assert "2 log batches wait" in finding.finding
    assert finding.fix == "apc serve persister"

    # A writer that has taken one and does not go on.
    async with bus.subscribe(log_queue(0), prefetch=1) as subscription:
        await subscription.receive()
        finding = await only_wrong()
        assert "the writer stands still" in finding.finding
    await bus.close()


async def test_dead_letters(healthy: None, amqp_vhost_url: str) -> None:
    connection = await aio_pika.connect(amqp_vhost_url)
    channel = await connection.channel()
    await channel.default_exchange.publish(aio_pika.Message(b"x"), DEAD_QUEUE)
    await connection.close()
    [waiting] = [finding for finding in await found(Status.WARNING) if finding.check == "dead letters"]
    assert waiting.finding == "1 waits to be recorded, and no gate takes them"


@pytest.mark.parametrize("url", [NO_DATABASE, None])
async def test_a_database_that_is_away(healthy: None, url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if url is None:
        monkeypatch.delenv("APC_DATABASE_URL")  # and there is no data folder here
    else:
        monkeypatch.setenv("APC_DATABASE_URL", url)
    finding = await only_wrong()
    assert finding.check == "database"
    assert "secret" not in finding.finding


async def test_a_database_that_may_lose_commits(healthy: None, database: asyncpg.Connection) -> None:
    name = await database.fetchval("SELECT current_database()")
    await database.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    finding = await only_wrong()
    assert finding.check == "durability"
    assert "synchronous_commit off" in finding.finding


@pytest.mark.parametrize(("revision", "fix"), [("0001", "apc migrate"), ("9999", "upgrade apc-bus")])
async def test_another_schema(healthy: None, database: asyncpg.Connection, revision: str, fix: str) -> None:
    await database.execute("UPDATE apc_guard.alembic_version SET version_num = $1", revision)
    finding = await only_wrong()
    assert (finding.check, finding.fix) == ("schema", fix)


async def test_a_guard_with_a_hole(healthy: None, database: asyncpg.Connection) -> None:
    await database.execute("ALTER EVENT TRIGGER apc_guard_ddl DISABLE")
    [lack] = [finding for finding in await found(Status.WARNING) if finding.check == "guard"]
    assert "event trigger apc_guard_ddl is missing or disabled" in lack.finding

    await database.execute("ALTER TABLE apc_log.agent_packets_0_1 DISABLE TRIGGER refuse_row_change")
    hole = await only_wrong()
    assert hole.check == "guard"
    assert "apc_log.agent_packets_0_1 lacks trigger refuse_row_change" in hole.finding


async def test_checkpoints_that_do_not_come_out(healthy: None, database: asyncpg.Connection) -> None:
    await database.execute("INSERT INTO apc_log.log_edges VALUES (0, 7, '{}')")
    made = "INSERT INTO apc_log.log_checkpoints VALUES (0, $1, sha256('r'), 'note', now() - $2 * interval '1 second')"
    await database.execute(made, 5, 90)
    # The edge and the note are nobody's: check `log end` says so.
    [finding] = [one for one in await found(Status.WRONG) if one.check == "checkpoints"]
    assert "no checkpoint was exported yet" in finding.finding

    await database.execute("INSERT INTO apc_log.checkpoint_exports VALUES (0, '/safe', 5)")
    assert "none waits" in next(one.finding for one in await found(Status.OK) if one.check == "checkpoints")

    await database.execute(made, 7, 60)
    [finding] = [one for one in await found(Status.WRONG) if one.check == "checkpoints"]
    assert "5 entries are exported to /safe" in finding.finding
    waiting = re.search(r"the next one waits for (\d+) s", finding.finding)
    assert waiting is not None and int(waiting[1]) >= 60


async def test_clocks_that_differ(database: asyncpg.Connection) -> None:
    findings = await look_at_database(database, may_be_undurable=False, clock=lambda: now() + timedelta(seconds=90))
    [finding] = [finding for finding in findings if finding.status is Status.WRONG]
    assert finding.check == "clock"
    assert "differ by" in finding.finding


async def test_recorded_time_that_is_ahead(healthy: None, postgres_url: str) -> None:
    bus = InMemoryBroker(build_topology()).connect("persister")
    async with asyncpg.create_pool(postgres_url) as pool:
        bench = LogBench(ScriptedGate(bus), bus, pool)
        await bench.gate.open()
        bench.gate.batch_no = 1
        batch = replace(bench.gate.batch([packet_entry()]), judged_at=now() + timedelta(hours=1))
        await bench.gate.publish(encode(batch), LOG_BATCH_TYPE)
        await bench.write()
    [finding] = [one for one in await found(Status.WRONG) if one.check == "recorded time"]
    assert re.search(r"shard 0: the newest verdict is 3[56]\d\d s ahead", finding.finding)
    assert "restart the orchestrator" in finding.fix


@pytest.mark.long
def test_the_command_says_it_as_json_and_fails(apc: ApcCommand, postgres_url: str) -> None:
    healthy = apc("doctor", given={"APC_DATABASE_URL": postgres_url})
    assert healthy.returncode == 0, healthy.stderr
    assert {row["status"] for row in json.loads(healthy.stdout)} == {"ok"}

    broken = apc("doctor", "--json", given={"APC_DATABASE_URL": NO_DATABASE, "APC_AMQP_URL": NO_BROKER})
    assert broken.returncode == 1, broken.stderr
    assert [row["check"] for row in json.loads(broken.stdout) if row["status"] == "wrong"] == ["broker", "database"]
    assert "secret" not in broken.stdout + broken.stderr


LOOKS = [
    ("look_at_nodes", "broker"),
    ("_look_at_database", "database"),
    ("look_at_databases", "databases"),
    ("look_at_recorded_time", "recorded time"),
    ("look_at_checkpoints", "checkpoints"),
    ("look_at_dead_letters", "dead letters"),
    ("look_at_inputs_set_aside", "inputs set aside"),
    ("look_at_effects", "effects"),
    ("look_at_unstored", "unstored entries"),
    ("look_at_projections", "search"),
    ("look_at_segments", "segments"),
    ("look_at_cluster", "cluster"),
    ("look_at_evidence", "log end"),
    ("registered_agents", "topology"),
    ("inspect_broker", "topology"),
    ("look_at_message_size", "message size"),
    ("look_at_places", "shards"),
    ("look_at_number", "shards"),
    ("look_at_users", "users"),
    ("look_at_lag", "log"),
    ("look_at_agents", "agents"),
    ("look_at_permissions", "permissions"),
]


@pytest.mark.long
async def test_no_look_can_end_the_examination(healthy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (asyncpg.InternalClientError("got result for unknown protocol state"), KeyError("unforeseen")):
        for look, check in LOOKS:
            with monkeypatch.context() as broken:
                broken.setattr(examination, look, _raising(error))
                finding = await only_wrong()
            assert (finding.check, str(error) in finding.finding) == (check, True), look


def _raising(error: Exception) -> Callable[..., Awaitable[list[Finding]]]:
    async def fail(*_: object, **__: object) -> list[Finding]:
        raise error

    return fail


def test_each_look_is_among_those_that_were_made_to_fail() -> None:
    tree = ast.parse(inspect.getsource(examination))
    named = {name.id for name in ast.walk(tree) if isinstance(name, ast.Name)}
    assert {one for one in named if one.startswith(("look_at_", "inspect_", "registered_"))} <= {
        *(look for look, _ in LOOKS),
        "look_at_database",
        "look_at_other_node",  # of a second node
    }

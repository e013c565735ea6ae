"""Rights by an edit of the database: the gate believes logged changes alone, and only those that are in the tree."""

import json
from uuid import uuid4

import asyncpg
import pytest
from tests.support.log import LogBench, packet_entry

from apc_bus.settings import PersisterSettings
from apc_cli.doctor import Status
from apc_cli.doctor.log import look_at_evidence
from apc_contracts.identity.registry import Registration
from apc_contracts.vocabulary import Right
from apc_log.batch import RegistryEntry
from apc_orchestrator.judging.registry import Registry
from apc_persister.errors import EntryForeign
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.verification.verify import verify_shard

GRANT = "UPDATE apc_log.agents SET rights = ARRAY['veto', 'operate'] WHERE agent_id = 'mallory'"
BY_TABLE = """
DROP VIEW apc_log.agents;
CREATE TABLE apc_log.agents AS
SELECT agent_id, 'agent.mallory' AS broker_user, 'explorer' AS role, 'alpha' AS swarm_id, ARRAY['veto'] AS rights,
       ARRAY['IDEA'] AS handles, '{}'::jsonb AS public_keys, false AS is_revoked, change_id
FROM apc_log.registry_events;
GRANT SELECT, UPDATE ON apc_log.agents TO apc_writer
"""
"""As the registry was before: a table beside the log."""


def registration(*rights: str) -> bytes:
    values = {"broker_user": "agent.mallory", "role": "explorer", "swarm_id": "alpha", "handles": ["IDEA"]}
    return json.dumps({"agent_id": "mallory", "action": "add", "rights": list(rights), **values}).encode()


def change(body: bytes) -> RegistryEntry:
    change_id = uuid4()
    return RegistryEntry(change_id, "mallory", json.dumps({"change_id": str(change_id), **json.loads(body)}).encode())


@pytest.fixture
async def log(bench: LogBench) -> LogBench:
    """A log in which mallory is registered with one right."""
    await bench.gate.open()
    await bench.gate.log([change(registration("veto"))])
    await bench.write()
    return bench


async def mallory(log: LogBench) -> Registration:
    """As a gate that starts now sees it."""
    return (await Registry.load(log.pool, "orchestrator", 0)).by_id["mallory"]


async def test_an_edit_of_the_registry_is_obeyed_where_it_is_a_table(log: LogBench) -> None:
    async with log.pool.acquire() as connection:
        for (name,) in await connection.fetch("SELECT evtname FROM pg_event_trigger"):
            await connection.execute(f"ALTER EVENT TRIGGER {name} DISABLE")
        await connection.execute(BY_TABLE)
        async with connection.transaction():
            await connection.execute("SET LOCAL SESSION AUTHORIZATION apc_writer")
            await connection.execute(GRANT)
    assert (await mallory(log)).rights == {Right.VETO, Right.OPERATE}


@pytest.mark.parametrize("role", ["apc_writer", "apc_owner", "postgres"])
@pytest.mark.parametrize(
    "act",
    [
        GRANT,
        "INSERT INTO apc_log.agents (agent_id) VALUES ('eve')",
        "DELETE FROM apc_log.agents",
        "DROP VIEW apc_log.agents",
    ],
)
async def test_an_edit_of_the_registry_is_refused(log: LogBench, role: str, act: str) -> None:
    async with log.pool.acquire() as connection:
        await connection.execute(f"SET SESSION AUTHORIZATION {role}")
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.ObjectNotInPrerequisiteStateError)):
            await connection.execute(act)
        await connection.execute("RESET SESSION AUTHORIZATION")
    assert (await mallory(log)).rights == {Right.VETO}


async def test_a_forged_change_is_not_obeyed_and_is_named(log: LogBench) -> None:
    """As the log writer's own role: the row and the head, without the tree, which only the signing key moves."""
    forged = change(registration("veto", "operate"))
    async with log.pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL SESSION AUTHORIZATION apc_writer")
        await connection.execute(
            "INSERT INTO apc_log.registry_events (shard, seq, epoch, batch_no, change_id, agent_id, change) "
            "VALUES (0, 2, 1, 1, $1, 'mallory', $2)",
            forged.change_id,
            forged.change.decode(),
        )
        await connection.execute("UPDATE apc_log.shards SET next_seq = 3")
    assert (await mallory(log)).rights == {Right.VETO}
    async with log.pool.acquire() as connection:
        report = await verify_shard(connection, 0, load_signer(PersisterSettings()).public_key(0))
    assert report.first is not None and "entry 2" in report.first.message
    await log.gate.log([packet_entry()])
    with pytest.raises(EntryForeign):
        await log.write()
    await log.pool.execute("UPDATE apc_log.log_edges SET tree_size = 2")
    assert (await mallory(log)).rights == {Right.VETO, Right.OPERATE}, "obeyed where the tree is said to hold it"


async def test_doctor_reports_a_change_beside_an_entry(log: LogBench) -> None:
    """At a number that the tree covers: the gate would believe it, doctor and verify name it."""
    await log.gate.log([packet_entry()])
    await log.write()
    forged = change(registration("veto", "operate"))
    await log.pool.execute(
        "INSERT INTO apc_log.registry_events (shard, seq, epoch, batch_no, change_id, agent_id, change) "
        "VALUES (0, 2, 1, 1, $1, 'mallory', $2)",
        forged.change_id,
        forged.change.decode(),
    )
    assert (await mallory(log)).rights == {Right.VETO, Right.OPERATE}, "the act works: only a look at the tree shows it"
    [finding] = [one for one in await look_at_evidence(log.pool) if one.status is Status.WRONG]
    assert (
        finding.check == "registry" and "entry 2 is a change of the registry that is not in the tree" in finding.finding
    )
    async with log.pool.acquire() as connection:
        report = await verify_shard(connection, 0, load_signer(PersisterSettings()).public_key(0))
    assert report.first is not None and report.first.seq == 2


async def test_a_change_in_a_shard_that_is_no_log_is_not_obeyed(log: LogBench) -> None:
    for number in range(3):
        forged = change(registration("operate"))
        await log.pool.execute(
            "INSERT INTO apc_log.registry_events (shard, seq, epoch, batch_no, change_id, agent_id, change) "
            "VALUES (9, $1, 1, 1, $2, 'mallory', $3)",
            number + 1,
            forged.change_id,
            forged.change.decode(),
        )
    assert (await mallory(log)).rights == {Right.VETO}
    await log.pool.execute("INSERT INTO apc_log.log_edges VALUES (9, 3, '{}')")
    assert (await mallory(log)).rights == {Right.OPERATE}, "obeyed where a tree is said to hold it"

"""How the writer stores changes of the registry."""

import json
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import asyncpg
import pytest
from tests.persister.writing.test_writer import conflicts
from tests.support.log import (
    LogBench,
    ScriptedGate,
)

from apc_bus.port import Delivery, Message
from apc_client.registration import wait_until_recorded
from apc_contracts import parse_registry_change
from apc_contracts.errors import ServiceAway
from apc_log.batch import (
    CONTENT_TYPE,
    LOG_BATCH_TYPE,
    LOG_BATCH_VERSION,
    Entry,
    EpochOpen,
    RegistryEntry,
)
from apc_log.registry import read_registry
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.tree import TreeSigner
from apc_persister.intake import Received
from apc_persister.transaction import commit
from apc_persister.writer import drop_connection, take_connection


def change(agent_id: str, action: str = "add", **fields: object) -> RegistryEntry:
    change_id = uuid4()
    values: dict[str, object] = {"change_id": str(change_id), "action": action, "agent_id": agent_id}
    registration = {
        "broker_user": f"agent.{agent_id}",
        "role": "explorer",
        "swarm_id": "swarm-1",
        "rights": ["veto"],
        "handles": ["IDEA", "CLAIM"],
        "public_keys": {"k1": "A" * 43 + "="},
    }
    if action == "add":
        values |= {**registration, **fields}
    return RegistryEntry(change_id, agent_id, json.dumps(values).encode())


async def test_the_registry_follows_its_changes(bench: LogBench) -> None:
    added, moved, revoked = change("a-1"), change("a-1", role="critic"), change("a-2")
    await bench.gate.open()
    await bench.gate.log([added, revoked, moved, change("a-2", "revoke"), change("a-3", rights="oops")])
    await bench.write()
    rows = await bench.pool.fetch("SELECT * FROM apc_log.agents ORDER BY agent_id")
    assert [(row["agent_id"], row["role"], row["is_revoked"]) for row in rows] == [
        ("a-1", "critic", False),
        ("a-2", "explorer", True),
    ]
    assert rows[0]["change_id"] == moved.change_id
    assert (rows[0]["rights"], rows[0]["handles"]) == (["veto"], ["IDEA", "CLAIM"])
    assert json.loads(rows[0]["public_keys"]) == {"k1": "A" * 43 + "="}
    assert await bench.count("registry_events") == 4
    assert [row["kind"] for row in await conflicts(bench)] == ["unstorable"]


async def write_to(bench: LogBench, shard: int, entries: list[Entry]) -> None:
    """Commit entries as the writer of a shard does."""
    gate = ScriptedGate(bench.bus, shard, epoch=1, batch_no=1)
    opening = EpochOpen(LOG_BATCH_VERSION, shard, gate.holder)
    delivery = Delivery(Message(b"", "1", LOG_BATCH_TYPE, CONTENT_TYPE), 1, str(shard), is_redelivered=False)
    messages = [Received(delivery, content) for content in (opening, gate.batch(entries))]
    connection = await take_connection(bench.pool, timedelta(seconds=10))
    await commit(connection, shard, messages, TreeSigner(shard, load_signer(bench.settings)))
    await drop_connection(bench.pool, connection)


async def test_the_registry_is_that_of_the_shard_that_is_ahead(bench: LogBench) -> None:
    added, moved = change("a-1"), change("a-1", role="critic")
    late = change("a-2")
    await write_to(bench, 0, [added])
    await write_to(bench, 1, [added, moved, late])
    rows = await bench.pool.fetch("SELECT agent_id, role, change_id FROM apc_log.agents ORDER BY agent_id")
    assert [tuple(row) for row in rows] == [("a-1", "critic", moved.change_id), ("a-2", "explorer", late.change_id)]


async def test_a_change_that_came_twice_is_a_conflict(bench: LogBench) -> None:
    added = change("a-1")
    await bench.gate.open()
    await bench.gate.log([added, change("a-1", "revoke"), added])
    await bench.write()
    assert await bench.pool.fetchval("SELECT is_revoked FROM apc_log.agents")
    assert await bench.count("registry_events") == 2
    assert [row["kind"] for row in await conflicts(bench)] == ["duplicate_event"]


class _Interrupted:
    """A pool: after each question somebody else registers an agent."""

    def __init__(self, bench: LogBench) -> None:
        self._bench = bench
        self._questions = 0

    async def fetch(self, *question: Any) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await self._bench.pool.fetch(*question)
        self._questions += 1
        await self._bench.gate.log([change(f"late-{self._questions}")])
        await self._bench.write()
        return rows


async def test_an_agent_that_registers_meanwhile_does_not_disturb_the_reader(bench: LogBench) -> None:
    await bench.gate.open()
    await bench.gate.log([change("a-1")])
    await bench.write()
    known = await read_registry(cast(asyncpg.Pool, _Interrupted(bench)))
    assert known["a-1"].role == "explorer"
    assert "late-1" in await read_registry(bench.pool)


async def test_changes_are_recorded_once_every_shard_has_all_of_them(bench: LogBench) -> None:
    entries: list[Entry] = [change("a-1"), change("a-2")]
    first, last = (parse_registry_change(cast(RegistryEntry, one).change) for one in entries)
    await write_to(bench, 0, entries)
    await write_to(bench, 1, entries[1:])
    for recorded in ([last], []):
        await wait_until_recorded(bench.pool, recorded, 2, timedelta(seconds=10))
    for missing in ([first, last], [last, first]):
        with pytest.raises(ServiceAway):
            await wait_until_recorded(bench.pool, missing, 2, timedelta())

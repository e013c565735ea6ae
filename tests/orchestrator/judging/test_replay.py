"""Whatever the gate did, the replay does again from the log alone; whatever is altered in the log, it names."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, cast

import asyncpg
import pytest
from tests.contracts.session.walk import Walk
from tests.orchestrator.conftest import House
from tests.orchestrator.shard.test_loading import CONTRACT, JudgedSimulation
from tests.support.log import lift_guard
from tests.support.log.batch_records import BatchRecords

from apc_contracts import IdeaPayload, Packet
from apc_contracts.contract.contract import contract_from_bytes
from apc_contracts.replay.entries import Entry, RecordedPacket
from apc_log.queries import PostgresRecords, Replayed, read_recorded, verify_run

Path = tuple[str, ...]
NOT_ALTERED = frozenset({"shard", "seq", "epoch", "batch_no", "contract_hash", "body"})
"""Where an entry stands, and what has its own hash."""
REGISTRYS_OWN = frozenset({"recipients"})
"""Who a BROADCAST reached: only the registry knows."""


def records_of(seed: int, steps: int = 80) -> BatchRecords:
    """Return the log of a random walk through a session."""
    simulation = JudgedSimulation(CONTRACT)
    walk = Walk(simulation, seed)
    for _ in range(steps):
        walk.step()
    return BatchRecords([batch.seal(0, 1) for batch in simulation.batches])


async def replayed(records: BatchRecords, **others: Any) -> Replayed:
    (run_id,) = records.runs
    return await verify_run(records, run_id, [CONTRACT], **others)


@pytest.mark.parametrize("seed", range(25))
async def test_a_walk_comes_out_as_it_was_recorded(seed: int) -> None:
    records = records_of(seed)
    found = await replayed(records)
    assert found.problem is None
    (entries,) = records.entries.values()
    assert found.packets + found.hops + found.transitions == len(entries)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_altered_is_found(seed: int) -> None:
    records, random = records_of(seed), Random(seed)
    ((session_id, entries),) = records.entries.items()
    for _ in range(60):
        at = random.randrange(len(entries))
        name, altered = alter(entries[at], random)
        records.entries[session_id] = [*entries[:at], altered, *entries[at + 1 :]]
        problem = (await replayed(records)).problem
        assert problem is not None or name in REGISTRYS_OWN, f"{entries[at].table}.{name} of {entries[at]}"


async def test_the_same_contract_would_have_changed_nothing() -> None:
    found = await replayed(records_of(1), other=CONTRACT)
    assert found.decisions > 50
    assert found.changes == ()


async def test_another_contract_would_have_decided_otherwise() -> None:
    file = json.loads(CONTRACT.body)
    for phase in file["phases"].values():
        phase["packet_types"] = [name for name in phase["packet_types"] if name != "EVAL"]
    records = records_of(1)
    found = await replayed(records, other=contract_from_bytes(json.dumps(file).encode()))
    assert found.problem is None
    (entries,) = records.entries.values()
    packets = [entry for entry in entries if isinstance(entry, RecordedPacket)]
    evals = [one for one in packets if one.envelope["packet_type"] == "EVAL"]
    accepted = {one.packet_id for one in evals if one.verdict == "accepted"}
    assert accepted
    changes = {change.packet_id: change for change in found.changes}
    assert accepted <= changes.keys()
    assert {changes[packet_id].was for packet_id in accepted} == {"accepted"}
    assert {change.would_be for change in changes.values()} == {"refused PHASE_FORBIDS_TYPE"}


async def test_a_contract_that_nobody_has_is_asked_for() -> None:
    (run_id,) = (records := records_of(2)).runs
    found = await verify_run(records, run_id, [])
    assert "name its file with --contract" in str(found.problem)


@pytest.mark.parametrize(
    ("alteration", "what"),
    [
        ("UPDATE apc_log.agent_packets SET verdict = 'held' WHERE seq = $1", "agent_packets.verdict"),
        (
            """UPDATE apc_log.agent_packets SET facts = jsonb_set(facts, '{session,generation}', '7') WHERE seq = $1""",
            "agent_packets.facts",
        ),
        ("UPDATE apc_log.agent_packets SET sender_swarm_id = 'blue' WHERE seq = $1", "agent_packets.sender_swarm_id"),
    ],
)
async def test_an_altered_row_is_named(
    house: House,
    packet: Callable[..., Packet],
    start: Callable[..., Packet],
    idea: IdeaPayload,
    alteration: str,
    what: str,
    exercised: Callable[..., None],
) -> None:
    """Matrix row 44."""
    async with house.persister(), house.gate():
        opening = await house.open(start())
        sent = packet("red-1", idea, ("sentinel",), parent=opening)
        await house.publish(sent)
        await house.quiet()
        await house.handle("sentinel")
        await house.quiet()
    pool: asyncpg.Pool = house.pool
    assert await pool.fetchval("SELECT document FROM apc_log.contracts") == CONTRACT.body
    seq = await pool.fetchval("SELECT seq FROM apc_log.agent_packets WHERE packet_id = $1", sent.packet_id)
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await lift_guard(cast(asyncpg.Connection, connection))
        for table in ("agent_packets", "agent_packets_0_1"):
            await connection.execute(f"ALTER TABLE apc_log.{table} DISABLE TRIGGER USER")
        await connection.execute(alteration, seq)
        found = await verify_run(PostgresRecords(connection), "run-1", [])
        packets = await connection.fetchval("SELECT count(*) FROM apc_log.agent_packets")
        exercised("a verdict altered in the log", packets=packets)
        assert found.problem is not None
        assert (found.problem.seq, found.problem.document["what"]) == (seq, what)
        await transaction.rollback()
    async with read_recorded(pool) as records:
        assert (await verify_run(records, "run-1", [])).problem is None, "the log holds its contract"


def alter(entry: Entry, random: Random) -> tuple[str, Entry]:
    """Return the entry with one value changed, and the name of its column."""
    while True:
        name = random.choice([field.name for field in fields(entry) if field.name not in NOT_ALTERED])
        value = getattr(entry, name)
        if isinstance(value, Mapping):
            places = list(paths(value))
            changed = put_other(value, random.choice(places)) if places else value
        else:
            changed = other_than(value)
        if changed != value:
            change: dict[str, Any] = {name: changed}
            return name, replace(entry, **change)


def paths(value: Any, above: Path = ()) -> Iterator[Path]:
    """Yield the ways to every value in nested objects."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield (*above, key)
            yield from paths(inner, (*above, key))


def put_other(value: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the object with another value at the end of this path, or none when there is no other."""
    first, *rest = path
    changed = dict(value)
    if rest:
        changed[first] = put_other(changed[first], tuple(rest))
        return changed
    other = other_than(changed.pop(first))
    return changed if other is None else changed | {first: other}


def other_than(value: Any) -> Any:
    """Return a value of the same type that differs; None where there is none."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case datetime():
            return value + timedelta(seconds=1)
        case list() | tuple() if value:
            return value[:-1]
        case _:
            return None

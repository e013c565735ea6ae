"""A log of 20,000 entries of every kind, made by the writer, and the checkpoints that left it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID, uuid4

import asyncpg
from tests.support.log import (
    LogBench,
    ScriptedGate,
    coordination,
    disable_guards,
    lifecycle,
    packet_entry,
)

from apc_bus.in_memory import InMemoryBroker
from apc_bus.settings import PersisterSettings
from apc_bus.topology import build_topology
from apc_log.batch import ConflictEntry, Entry, LineageEntry, PacketEntry, RegistryEntry
from apc_log.offline_verifier import Checkpoint, parse_note
from apc_persister.evidence.checkpoint import Signer, load_signer

ENTRIES = 20_000
_BATCHES = 40
_EPOCHS = 4


@dataclass(frozen=True)
class LongLog:
    """The log, its guards lifted, and what is held outside of it."""

    signer: Signer
    outside: tuple[Checkpoint, ...]


async def write_long_log(pool: asyncpg.Pool) -> LongLog:
    """Write it through a real writer into a fresh database."""
    broker = InMemoryBroker(build_topology())
    bench = LogBench(ScriptedGate(broker.connect("orchestrator")), broker.connect("persister"), pool)
    numbers = iter(range(ENTRIES))
    for batch in range(_BATCHES):
        if batch % (_BATCHES // _EPOCHS) == 0:
            await bench.gate.open()
        entries = list(_entries(batch, numbers, ENTRIES // _BATCHES))
        await bench.gate.log(entries)
        if batch % 4 == 3:
            await bench.write()
    assert await bench.numbers() == list(range(1, ENTRIES + 1))
    signer = load_signer(PersisterSettings())
    notes = await pool.fetch("SELECT note FROM apc_log.log_checkpoints ORDER BY tree_size")
    outside = tuple(parse_note(row["note"]).check(signer.public_key(0)) for row in notes)
    await disable_guards(pool)
    return LongLog(signer, outside)


def _entries(batch: int, numbers: Iterator[int], count: int) -> Iterator[Entry]:
    """So many entries; `numbers` tells them apart over the whole log."""
    made = 0
    for number in numbers:
        group = list(_group(batch, number))[: count - made]
        yield from group
        made += len(group)
        if made == count:
            return


def _group(batch: int, number: int) -> Iterator[Entry]:
    session, run = f"session-{number % 50}", f"run-{number % 5}"
    kind = ("IDEA", "TRANSFER", "EVAL")[number % 3]
    code = "THROTTLE_SCORE" if number % 7 == 0 else None
    metrics = {"metric_set": {"outcome": number % 10 / 10, "drift_risk": number % 7 / 7}}
    packet = packet_entry(session_id=session, run_id=run, packet_type=kind, refusal_code=code, payload=metrics)
    yield packet
    if kind == "TRANSFER":
        yield _lineage(packet, number)
    if code is None:
        yield from lifecycle(packet)
    yield coordination(packet, number, "packet", "A", "B")
    if number % 11 == 0:
        raw = b"no batch %d" % number
        yield ConflictEntry(session, None, "unreadable", None, "no batch", raw, None, None, None)
    if number % 13 == 0:
        yield _registry(uuid4(), f"agent-{number % 29}", is_added=number % 4 != 0)


def _lineage(packet: PacketEntry, number: int) -> LineageEntry:
    protocol = f"protocol-{number % 4}"
    return LineageEntry(
        packet.session_id, packet.packet_id, protocol, [], ["w"], number % 2 == 0, "COMMONS_SEED", "w", None, 0.5, None
    )


def _registry(change_id: UUID, agent_id: str, *, is_added: bool) -> RegistryEntry:
    change: dict[str, object] = {"change_id": str(change_id), "agent_id": agent_id}
    if is_added:
        change |= {"action": "add", "broker_user": agent_id, "role": "explorer", "swarm_id": "swarm-1"}
    else:
        change |= {"action": "revoke"}
    return RegistryEntry(change_id, agent_id, json.dumps(change).encode())

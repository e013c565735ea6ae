"""The blast radius of a retraction in a session of many packets: by the log's query, and in memory."""

import json
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from random import Random
from uuid import UUID

import msgspec
from tests.support.log import LogBench, ScriptedGate, packet_entry, session_row

from apc_bus.database import open_pool
from apc_bus.in_memory import InMemoryBroker
from apc_bus.topology import build_topology
from apc_contracts.session.session import Grounds
from apc_contracts.vocabulary import PacketType
from apc_log.batch import PacketEntry
from apc_log.queries import get_packet_impact
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.servers import Servers

BAR_MS = 1000.0
BATCH = 500
REPEATS = 3
Parents = Callable[[Random, int], int]
"""From a packet's place to its parent's."""


async def measure_impact(servers: Servers, figures: Figures, count: int) -> None:
    """Measure a chain, a tree and a tangle of `count` packets, each in a fresh database that was never analysed."""
    for name, parent, has_evidence in (
        ("chain", lambda _, at: at - 1, False),
        ("tree", lambda _, at: (at - 1) // 10, False),
        ("tangle", lambda random, at: random.randrange(at), True),
    ):
        await _measure(servers, figures, name, _entries(count, parent, has_evidence=has_evidence))


async def _measure(servers: Servers, figures: Figures, name: str, entries: Sequence[PacketEntry]) -> None:
    pool = await open_pool(await servers.fresh_database(), max_size=4)
    broker = InMemoryBroker(build_topology())
    bench = LogBench(ScriptedGate(broker.connect("orchestrator")), broker.connect("persister"), pool)
    await bench.gate.open()
    for first in range(0, len(entries), BATCH):
        await bench.gate.log(list(entries[first : first + BATCH]), [session_row()])
    await bench.write()
    taken, resting = [], 0
    for _ in range(REPEATS):
        began = time.perf_counter()
        impact = await get_packet_impact(pool, entries[0].packet_id)
        taken.append(1000 * (time.perf_counter() - began))
        assert impact is not None
        resting = len(impact.resting)
    await pool.close()
    grounds = _grounds(entries)
    began = time.perf_counter()
    found = grounds.closure(entries[0].packet_id)
    in_memory = 1000 * (time.perf_counter() - began)
    assert len(found) == resting == len(entries) - 1, (len(found), resting)
    note = f"{resting:,} packets rest on one"
    figures.add(
        Figure(f"impact_{name}", min(taken), "ms", BAR_MS, 1.0, is_time=True, note=f"{note}; one query"),
        Figure(f"impact_{name}_memory", in_memory, "ms", note=f"{note}; within the gate's batch"),
    )


def _entries(count: int, parent: Parents, *, has_evidence: bool) -> list[PacketEntry]:
    """CLAIMs under one another; with evidence, each names three others, earlier or later."""
    random = Random(1)
    ids = [UUID(int=random.getrandbits(128)) for _ in range(count)]
    entries: list[PacketEntry] = []
    for at, packet_id in enumerate(ids):
        refers = [f"packet:{one}" for one in random.choices(ids, k=3)] if has_evidence else []
        body = json.dumps({"payload": {"claim_id": "c"}, "proof_bundle": {"evidence_refs": refers}}).encode()
        plain = packet_entry(packet_id, packet_type="CLAIM", parent=entries[parent(random, at)] if at else None)
        entries.append(msgspec.structs.replace(plain, body=body, packet_hash=sha256(body).digest()))
    return entries


def _grounds(entries: Sequence[PacketEntry]) -> Grounds:
    grounds = Grounds()
    for entry in entries:
        refers = json.loads(entry.body)["proof_bundle"]["evidence_refs"]
        grounds.note(entry.packet_id, PacketType.CLAIM, entry.parent_packet_id, refers, ())
    return grounds

"""The blast radius by one query is that of an independent walk over the same graph."""

import json
from collections.abc import Sequence
from hashlib import sha256
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from tests.support.log import LogBench, packet_entry, session_row

from apc_contracts import load_contract
from apc_contracts.session.lifecycle import ADVANCE
from apc_contracts.session.session import Grounds
from apc_contracts.vocabulary import PacketType
from apc_log.batch import HopEntry, PacketEntry
from apc_log.queries import get_packet_grounds, get_packet_impact, trace

TYPES = ("CLAIM", "EVAL", "ARTIFACT", "ARBITRATION", "DECISION", "SIGNAL", "RETRACTION", "ACK")
ANSWERS = ("RETRACTION", "ACK")


class Graph:
    """A random session: every packet may rest on any other, earlier or later, on itself and on nothing."""

    def __init__(self, seed: int, size: int) -> None:
        random = Random(seed)
        self.ids = [UUID(int=random.getrandbits(128)) for _ in range(size)]
        self.digests = [f"sha256:{random.getrandbits(256):064x}" for _ in range(4)]
        self.entries = [self._entry(random, at) for at in range(size)]

    def _entry(self, random: Random, at: int) -> PacketEntry:
        packet_type = random.choice(TYPES)
        some = [str(one) for one in random.choices(self.ids, k=random.choice((0, 0, 1, 2)))]
        hashes = random.choices(self.digests, k=random.choice((0, 0, 0, 1)))
        packet: dict[str, Any] = {"proof_bundle": {"evidence_refs": [f"packet:{one}" for one in some] + hashes}}
        if packet_type == "ARTIFACT":
            packet["payload"] = {"artifact_hash": random.choice(self.digests)}
        if packet_type == "ARBITRATION":
            named = [str(one) for one in random.choices(self.ids, k=random.choice((0, 1, 2)))]
            packet["payload"] = {"candidates": [{"packet_ref_ids": named}, {"packet_ref_ids": []}]}
        parent = random.choice(self.ids[:at]) if at and random.random() < 0.6 else None
        refusal = "EXPIRED" if random.random() < 0.1 else None
        plain = packet_entry(self.ids[at], packet_type=packet_type, refusal_code=refusal)
        body = json.dumps(packet).encode()
        return msgspec.structs.replace(plain, body=body, packet_hash=sha256(body).digest(), parent_packet_id=parent)

    def closure(self, target: UUID) -> set[UUID]:
        """By repetition until nothing changes, over the bytes alone."""
        found = {target}
        while True:
            grown = found | {entry.packet_id for entry in self.entries if self._rests_on_one(entry, found)}
            if grown == found:
                return found - {target}
            found = grown

    def _rests_on_one(self, entry: PacketEntry, grounds: set[UUID]) -> bool:
        if entry.verdict == "refused" or entry.packet_type in ANSWERS:
            return False
        packet = json.loads(entry.body)
        payload = packet.get("payload", {})
        named = set(packet["proof_bundle"]["evidence_refs"])
        for candidate in payload.get("candidates", ()):
            named |= {f"packet:{one}" for one in candidate["packet_ref_ids"]}
        named |= {payload["artifact_hash"]} if "artifact_hash" in payload else set()
        bad = {f"packet:{one}" for one in grounds}
        for other in self.entries:
            is_ground = other.packet_id in grounds and other.verdict != "refused"
            if is_ground and other.packet_type == "ARTIFACT":
                bad.add(json.loads(other.body)["payload"]["artifact_hash"])
        return entry.parent_packet_id in grounds or not named.isdisjoint(bad)


async def write(bench: LogBench, entries: Sequence[Any]) -> None:
    await bench.gate.open()
    await bench.gate.log(list(entries), [session_row()])
    await bench.write()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_the_query_finds_what_a_walk_finds(bench: LogBench, seed: int) -> None:
    graph = Graph(seed, 80)
    await write(bench, graph.entries)
    sizes = set()
    for target in graph.ids:
        impact = await get_packet_impact(bench.pool, target)
        assert impact is not None
        found = [row.packet_id for row in impact.resting]
        assert len(found) == len(set(found))
        assert set(found) == graph.closure(target)
        sizes.add(len(found))
    assert len(sizes) > 3, "graphs of one size prove little"


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_the_grounds_of_a_packet_are_what_it_is_in_the_impact_of(bench: LogBench, seed: int) -> None:
    graph = Graph(seed, 80)
    await write(bench, graph.entries)
    closures = {target: graph.closure(target) for target in graph.ids}
    for packet_id in graph.ids:
        known = await get_packet_grounds(bench.pool, packet_id)
        assert known is not None
        found = [row.packet_id for row in known.grounds]
        assert len(found) == len(set(found))
        assert set(found) == {target for target in graph.ids if packet_id in closures[target]}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_sessions_memory_finds_what_a_walk_finds(seed: int) -> None:
    graph, grounds = Graph(seed, 80), Grounds()
    nothing = load_contract().retraction.rests_on_nothing
    for entry in graph.entries:
        if entry.verdict == "refused" or entry.packet_type in nothing:
            continue
        packet = json.loads(entry.body)
        payload = packet.get("payload", {})
        names = [payload["artifact_hash"]] if entry.packet_type == "ARTIFACT" else []
        refers = [*packet["proof_bundle"]["evidence_refs"], *names]
        for candidate in payload.get("candidates", ()):
            refers += [f"packet:{one}" for one in candidate["packet_ref_ids"]]
        grounds.note(entry.packet_id, PacketType(entry.packet_type), entry.parent_packet_id, refers, names)
    for target in graph.ids:
        assert set(grounds.closure(target)) == graph.closure(target)


@pytest.mark.parametrize("named", ["-" * 36, f"{'-' * 4}{'0' * 32}", "0" * 36, f"{UUID(int=1)}'--"])
async def test_a_reference_that_is_nearly_an_id_is_no_ground(bench: LogBench, named: str) -> None:
    """What stands in the bytes of a log may be forged: a query over them must not fail."""
    claim, packet = packet_entry(packet_type="CLAIM"), packet_entry(packet_type="ARBITRATION")
    candidates = [{"packet_ref_ids": [named, str(claim.packet_id)]}]
    body = json.dumps({"packet_id": str(packet.packet_id), "payload": {"candidates": candidates}}).encode()
    await write(bench, [claim, msgspec.structs.replace(packet, body=body, packet_hash=sha256(body).digest())])
    known = await get_packet_grounds(bench.pool, packet.packet_id)
    assert known is not None and [row.packet_id for row in known.grounds] == [claim.packet_id]


async def test_the_same_ids_in_another_session_are_another_graph(bench: LogBench) -> None:
    ground = packet_entry(packet_type="CLAIM")
    child = packet_entry(packet_type="CLAIM", parent=ground)
    elsewhere = msgspec.structs.replace(packet_entry(packet_type="CLAIM", parent=ground), session_id="session-2")
    await write(bench, [ground, child, elsewhere])
    impact = await get_packet_impact(bench.pool, ground.packet_id)
    assert impact is not None and [row.packet_id for row in impact.resting] == [child.packet_id]
    assert await get_packet_impact(bench.pool, ground.packet_id, session_id="session-2") is None
    for packet, grounds in ((child, [ground.packet_id]), (elsewhere, [])):
        known = await get_packet_grounds(bench.pool, packet.packet_id)
        assert known is not None and [row.packet_id for row in known.grounds] == grounds
    assert await get_packet_grounds(bench.pool, UUID(int=7)) is None


async def test_a_mark_is_seen_and_moves_nothing(bench: LogBench) -> None:
    ground = packet_entry(packet_type="CLAIM")
    child = packet_entry(packet_type="CLAIM", parent=ground)
    why = json.dumps({"stale": {"because": str(ground.packet_id), "retraction": str(UUID(int=1))}}).encode()
    now = child.created_at
    hops = [
        HopEntry("session-1", one.packet_id, "", 1, "DRAFT", "ROUTED", ["emit"], [now], "a", None)
        for one in (ground, child)
    ]
    mark = HopEntry("session-1", child.packet_id, "", 0, "", "", ["stale"], [now], "orchestrator", why)
    before = "SELECT packet_id, state FROM apc_log.packet_state ORDER BY packet_id"
    await write(bench, [ground, child, *hops])
    states = await bench.pool.fetch(before)
    await bench.gate.log([mark], [session_row()])
    await bench.write()
    assert await bench.pool.fetch(before) == states
    page = await trace(bench.pool, session_id="session-1")
    marks = {one.packet.packet_id: one.stale for one in page.packets}
    assert marks[ground.packet_id] is None
    stale = marks[child.packet_id]
    assert stale is not None and stale.because_packet_id == ground.packet_id and stale.retraction_packet_id is not None
    impact = await get_packet_impact(bench.pool, ground.packet_id)
    assert impact is not None and [row.is_stale for row in impact.resting] == [True]


async def test_recipients_are_ranked_as_in_the_log(pool: asyncpg.Pool) -> None:
    ranks = [await pool.fetchval("SELECT apc_log.lifecycle_rank($1)", state) for state in ADVANCE]
    assert ranks == sorted(ranks) and None not in ranks

"""A log of two segments, of every kind of entry, and its archive in a folder: what tests of the archive begin with."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import asyncpg
from msgspec import structs
from tests.support.log.entries import coordination, hop, lifecycle, packet_entry

from apc_bus.database import open_pool
from apc_bus.port import Delivery, Message
from apc_bus.settings import ArchiveSettings, PersisterSettings
from apc_contracts.contract.contract import load_contract
from apc_contracts.protocol.effectiveness import DecayDecision, DecayKind, DecayScope, EvalTally, Subject
from apc_log.archive import BLOCK, Archive, Manifest, place_of
from apc_log.batch import (
    EPOCH_OPEN_TYPE,
    LOG_BATCH_TYPE,
    LOG_BATCH_VERSION,
    ConflictEntry,
    Entry,
    EpochOpen,
    LineageEntry,
    LogBatch,
    PacketEntry,
    RegistryEntry,
    encode,
)
from apc_log.offline_verifier import Checkpoint, PublicKey, parse_note
from apc_log.thawing import read_archive
from apc_persister.ageing import Ageing, Policy, Step
from apc_persister.archiving import archive_segment
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.tree import TreeSigner
from apc_persister.follower import Follower
from apc_persister.intake import read_message
from apc_persister.transaction import commit
from apc_persister.writer import drop_connection, take_connection

SEGMENTS = 2
APPROVAL = UUID("aaaaaaaa-0000-4000-8000-000000000001")
"""A packet of the first segment."""
_CONTRACT_HASH = load_contract().hash
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_BLOCK = DecayDecision(
    DecayKind.BLOCKED, Subject(DecayScope.PROTOCOL, "protocol-1"), _NOW, _NOW, _NOW + timedelta(9), 10, 1, EvalTally()
)
_DECAY = json.dumps({"decay": _BLOCK.record}).encode()
_BATCH = 2_000
_SPOKEN = 6
"""Of so many batches one is of packets; the others are of what costs little to write."""


@dataclass(frozen=True)
class ArchivedLog:
    """The log, and its archive."""

    url: str
    """Of the database."""
    folder: Path
    """Of the archive."""
    log_name: str
    key: PublicKey
    checkpoints: tuple[Checkpoint, ...]
    """All that were signed: what an auditor may have kept."""
    manifests: tuple[Manifest, ...]

    def archive(self, location: Path | str | None = None, cache: Path | None = None) -> Archive:
        """Return the archive, or that of another folder."""
        return Archive(location or self.folder, self.log_name, cache=cache or self.folder / "no-cache")

    def at(self, folder: Path) -> "ArchivedLog":
        """Return the same log with its archive in another folder."""
        return replace(self, folder=folder)


async def write_segments(url: str, shard: int = 0) -> tuple[str, PublicKey, tuple[Checkpoint, ...]]:
    """Fill an empty database with two segments and a little more; return the log's name, key and checkpoints."""
    pool = await open_pool(url, max_size=2)
    connection = await take_connection(pool, timedelta(seconds=60))
    signer = load_signer(PersisterSettings())
    tree = TreeSigner(shard, signer)

    async def write(body: bytes, kind: str) -> None:
        received = read_message(shard, Delivery(Message(body, message_id="load", type=kind), 1, "0", False))
        await commit(connection, shard, [received], tree)

    await write(encode(EpochOpen(LOG_BATCH_VERSION, shard, uuid4())), EPOCH_OPEN_TYPE)
    for number in count():
        entries = list(spoken_entries(number)) if number % _SPOKEN == 0 else list(_cheap(number))
        batch = LogBatch(LOG_BATCH_VERSION, shard, 1, number + 1, datetime.now(UTC), entries, [])
        await write(encode(batch), LOG_BATCH_TYPE)
        if await connection.fetchval("SELECT max(tree_size) FROM apc_log.log_edges") > SEGMENTS * BLOCK:
            break
    notes = await pool.fetch("SELECT note FROM apc_log.log_checkpoints ORDER BY tree_size")
    await drop_connection(pool, connection)
    await pool.close()
    key = signer.public_key(shard)
    held = tuple(parse_note(row["note"]).check(key) for row in notes)
    return key.name.rpartition("/")[0], key, held


async def archive_log(url: str, folder: Path) -> ArchivedLog:
    """Fill a database and archive both segments into a folder."""
    log_name, key, checkpoints = await write_segments(url)
    log = ArchivedLog(url, folder, log_name, key, checkpoints, ())
    connection = await asyncpg.connect(url)
    try:
        manifests = [
            await archive_segment(connection, log.archive(), 0, first, first + BLOCK - 1)
            for first in range(1, SEGMENTS * BLOCK, BLOCK)
        ]
    finally:
        await connection.close()
    return replace(log, manifests=tuple(manifests))


def spoken_entries(number: int) -> Iterator[Entry]:
    """Packets of all fates, with what follows from them, and the registry's changes."""
    above: PacketEntry | None = None
    for place in range(_BATCH // 10):
        run = f"run-{place // 10 % 3}"
        packet = packet_entry(
            APPROVAL if number == place == 0 else uuid4(),
            session_id=f"session-of-{run}",
            run_id=run,
            task_id=f"task-{place % 7}",
            packet_type=("APPROVAL", "ARTIFACT", "TRANSFER", "CLAIM")[place % 4],
            parent=above if above is not None and place % 3 == 1 and above.run_id == run else None,
            recipients=(f"receiver-{place % 3}", 'receiver-é\n"7"'),
            refusal_code="MALFORMED" if place % 9 == 8 else None,
            payload={
                "text": f"word{place} Grüße",
                "claim_id": f"claim-{place}",
                "artifact_hash": f"sha256:{place:064x}",
            },
        )
        packet = structs.replace(packet, contract_hash=_CONTRACT_HASH)
        above = packet
        yield packet
        yield from _fate(packet, number, place)


def _fate(packet: PacketEntry, number: int, place: int) -> Iterator[Entry]:
    if packet.packet_type == "TRANSFER":
        yield LineageEntry(
            packet.session_id, packet.packet_id, f"protocol-{place % 4}", ["p-0"], ["w"], place % 8 == 0,
            "COMMONS_SEED", "w", None, 0.5, None,
        )  # fmt: skip
    if packet.verdict == "accepted":
        yield from lifecycle(packet)[: 1 + place % 4]
    if place % 50 == 0:
        yield _blocked(packet)
        yield coordination(packet, number * _BATCH + place, "move", "A", "B")
        yield hop(packet, ["stale"], "", "", metadata=json.dumps({"stale": {"because": str(uuid4())}}).encode())
        yield ConflictEntry(packet.session_id, packet.packet_id, "conflict", "X", "twice", b"raw", b"f" * 32, None, "u")
        change = {"change_id": str(uuid4()), "agent_id": f"agent-{place}", "action": "revoke"}
        yield RegistryEntry(UUID(change["change_id"]), change["agent_id"], json.dumps(change).encode())


def _blocked(packet: PacketEntry) -> PacketEntry:
    """Return the orchestrator's decision that a protocol has decayed."""
    decision = packet_entry(
        session_id=packet.session_id, run_id=packet.run_id, task_id=packet.task_id, packet_type="DECISION"
    )
    return structs.replace(decision, sender_agent_id="orchestrator", facts=_DECAY, contract_hash=_CONTRACT_HASH)


def _cheap(number: int) -> Sequence[Entry]:
    raw = b"no batch %d" % number
    return [ConflictEntry(None, None, "unreadable", None, "no batch", raw, None, None, None)] * _BATCH


# The same log with both segments released.

_BEGIN_SESSIONS = """
INSERT INTO apc_log.sessions (session_id, shard, epoch, batch_no, run_id, state, is_terminal, round, generation, step,
                              open_deliveries, document, first_seq, last_seq)
SELECT session_id, shard, 1, 1, substr(session_id, 12), 'RESULT_READY', session_id <> 'session-of-run-1', 1, 1, 1, 0,
       '{}', first_seq, last_seq
FROM apc_log.unopened_sessions
"""
_EXPORTED = """
INSERT INTO apc_log.checkpoint_exports (shard, target, tree_size) SELECT shard, 'held', next_seq FROM apc_log.shards
"""


class ReleasedLog:
    """A log, and what of its two segments was released."""

    def __init__(self, pool: asyncpg.Pool, log_name: str, folder: Path, shard: int = 0) -> None:
        self.pool = pool
        self.shard = shard
        self.log_name = log_name
        self.folder = folder
        self.archive = Archive(folder / "archive", log_name, cache=folder / "cache")

    async def release(self, number: int = SEGMENTS) -> None:
        """Archive both segments and let go of the first `number` of them."""
        async with self.pool.acquire() as connection:
            policy = Policy(release_after=timedelta(microseconds=1))
            assert [step.done async for step in Ageing(connection, self.archive, policy).run()] == [
                "archived",
                "waits",
            ] * 2
            await connection.execute(_EXPORTED)
            steps = cast(AsyncGenerator[Step], Ageing(connection, self.archive, policy).run())
            assert [(await anext(steps)).done for _ in range(number)] == ["released"] * number
            await steps.aclose()

    @property
    def places(self) -> list[str]:
        """Where the objects of the segments stand."""
        return [place_of(f"{self.log_name}/{self.shard}", 1 + number * BLOCK) for number in range(SEGMENTS)]

    def attach(self, pool: asyncpg.Pool | None = None) -> None:
        """Let a pool read the archive; None = its own."""
        settings = ArchiveSettings(archive_url=self.archive.location, data_dir=self.folder)
        read_archive(pool or self.pool, settings)


@asynccontextmanager
async def full_log(url: str, folder: Path, shard: int = 0) -> AsyncIterator[ReleasedLog]:
    """Give a log of two full segments, nothing released: session-of-run-1 is open, the others have ended."""
    name, _, _ = await write_segments(url, shard)
    pool = await open_pool(url, max_size=4)
    try:
        await Follower(pool).catch_up()
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute(_BEGIN_SESSIONS)
            await connection.execute("DELETE FROM apc_log.unopened_sessions")
        yield ReleasedLog(pool, name, folder, shard)
    finally:
        await pool.close()

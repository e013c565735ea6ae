"""A log of two segments, of every kind of entry, and its archive in a folder: what tests of the archive begin with."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
from tests.support.log.entries import coordination, hop, lifecycle, packet_entry

from apc_bus.database import open_pool
from apc_bus.port import Delivery, Message
from apc_bus.settings import PersisterSettings
from apc_log.archive import BLOCK, Archive, Manifest
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
from apc_persister.archiving import archive_segment
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.tree import TreeSigner
from apc_persister.intake import read_message
from apc_persister.transaction import commit
from apc_persister.writer import drop_connection, take_connection

SEGMENTS = 2
APPROVAL = UUID("aaaaaaaa-0000-4000-8000-000000000001")
"""A packet of the first segment."""
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


async def write_segments(url: str) -> tuple[str, PublicKey, tuple[Checkpoint, ...]]:
    """Fill an empty database with two segments and a little more; return the log's name, key and checkpoints."""
    pool = await open_pool(url, max_size=2)
    connection = await take_connection(pool, timedelta(seconds=60))
    signer = load_signer(PersisterSettings())
    tree = TreeSigner(0, signer)

    async def write(body: bytes, kind: str) -> None:
        received = read_message(0, Delivery(Message(body, message_id="load", type=kind), 1, "0", False))
        await commit(connection, 0, [received], tree)

    await write(encode(EpochOpen(LOG_BATCH_VERSION, 0, uuid4())), EPOCH_OPEN_TYPE)
    for number in count():
        entries = list(_spoken(number)) if number % _SPOKEN == 0 else list(_cheap(number))
        batch = LogBatch(LOG_BATCH_VERSION, 0, 1, number + 1, datetime.now(UTC), entries, [])
        await write(encode(batch), LOG_BATCH_TYPE)
        if await connection.fetchval("SELECT max(tree_size) FROM apc_log.log_edges") > SEGMENTS * BLOCK:
            break
    notes = await pool.fetch("SELECT note FROM apc_log.log_checkpoints ORDER BY tree_size")
    await drop_connection(pool, connection)
    await pool.close()
    key = signer.public_key(0)
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


def _spoken(number: int) -> Iterator[Entry]:
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
        yield coordination(packet, number * _BATCH + place, "move", "A", "B")
        yield hop(packet, ["stale"], "", "", metadata=json.dumps({"stale": {"because": str(uuid4())}}).encode())
        yield ConflictEntry(packet.session_id, packet.packet_id, "conflict", "X", "twice", b"raw", b"f" * 32, None, "u")
        change = {"change_id": str(uuid4()), "agent_id": f"agent-{place}", "action": "revoke"}
        yield RegistryEntry(UUID(change["change_id"]), change["agent_id"], json.dumps(change).encode())


def _cheap(number: int) -> Sequence[Entry]:
    raw = b"no batch %d" % number
    return [ConflictEntry(None, None, "unreadable", None, "no batch", raw, None, None, None)] * _BATCH

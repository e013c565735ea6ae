"""A log with three checkpoints, and those checkpoints held outside of the database."""

from dataclasses import dataclass
from hashlib import sha256

import asyncpg
import msgspec
import pytest
from tests.support.log import LogBench, coordination, lifecycle, packet_entry

from apc_bus.settings import PersisterSettings
from apc_log.batch import Entry, PacketEntry
from apc_log.offline_verifier import Checkpoint, parse_note
from apc_persister.evidence.checkpoint import Signer, load_signer
from apc_persister.verification.chunks import Helpers
from apc_persister.verification.verify import Report, verify_shard

CONTRACT = b'{"name": "of the tests"}'
"""The contract file whose hash the packets name."""


@dataclass
class WrittenLog:
    """What the tests attack, and prove from."""

    bench: LogBench
    pool: asyncpg.Pool
    signer: Signer
    outside: list[Checkpoint]

    async def verify(self, *, outside: bool = True, first: int = 1, helpers: Helpers | None = None) -> Report:
        """As `apc log verify`, with the checkpoints held outside or without."""
        held, key = self.outside if outside else (), self.signer.public_key(0)
        async with self.pool.acquire() as connection:
            return await verify_shard(connection, 0, key, first=first, outside=held, helpers=helpers)


def judged(packet: PacketEntry) -> PacketEntry:
    """Return the packet as judged by CONTRACT."""
    return msgspec.structs.replace(packet, contract_hash=sha256(CONTRACT).digest())


@pytest.fixture
async def written(bench: LogBench) -> WrittenLog:
    """A log of 606 entries: hops, packets, moves of the session, a refusal's conflict; two runs."""
    await bench.gate.open()
    for run in ("run-1", "run-2", "run-1"):
        entries: list[Entry] = []
        for number in range(50):
            packet = judged(packet_entry(run_id=run, session_id=f"session-of-{run}", text=f"packet {number}"))
            entries += [packet, *lifecycle(packet)]
        last = judged(packet_entry(run_id=run, session_id=f"session-of-{run}", refusal_code="MALFORMED"))
        entries += [last, coordination(last, bench.gate.batch_no, "open", "A", "B")]
        await bench.gate.log(entries)
        await bench.write()
    signer = load_signer(PersisterSettings())
    notes = await bench.pool.fetch("SELECT note FROM apc_log.log_checkpoints ORDER BY tree_size")
    outside = [parse_note(row["note"]).check(signer.public_key(0)) for row in notes]
    return WrittenLog(bench, bench.pool, signer, outside)

"""Fills a log with packets by the writer's own transaction, without a broker: for the figures of a long log."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from apc_bus.log_batch import (
    EPOCH_OPEN_TYPE,
    LOG_BATCH_TYPE,
    LOG_BATCH_VERSION,
    Entry,
    EpochOpen,
    LogBatch,
    PacketEntry,
    encode,
)
from apc_bus.port import Delivery, Message
from apc_persister.connection import drop_connection, take_connection
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.notary import Notary
from apc_persister.intake import read_message
from apc_persister.settings import PersisterSettings
from apc_persister.testing import lifecycle, packet_entry
from apc_persister.transaction import commit

PACKETS_A_TRANSACTION = 500
"""2,000 entries with their hops, as many as a transaction of the persister takes."""
PACKETS_A_RUN = 10_000
PACKETS_A_TASK = 50
CHILDREN = 4
"""Packets that a packet causes, so that a run is a tree some levels deep."""


@dataclass(slots=True)
class Loaded:
    """What a loader has written so far."""

    packets: int = 0
    seconds: float = 0.0
    """In the writer's transactions alone."""
    last: PacketEntry | None = None

    @property
    def rate(self) -> float:
        """Packets a second."""
        return self.packets / self.seconds


class Loader:
    """Writes packets into shard 0 of one database; made by `open_loader`, closed by `close`."""

    def __init__(self, pool: asyncpg.Pool, connection: PoolConnectionProxy) -> None:
        self._pool = pool
        self._connection = connection
        self._notary = Notary(0, load_signer(PersisterSettings()))
        self._batch_no = 0
        self._packets = _packets()

    async def begin(self) -> None:
        """Take the shard."""
        await self._commit(encode(EpochOpen(LOG_BATCH_VERSION, 0, uuid4())), EPOCH_OPEN_TYPE)

    async def load(self, packets: int) -> Loaded:
        """Write so many packets more, with three hops each."""
        loaded = Loaded()
        while loaded.packets < packets:
            entries: list[Entry] = []
            for _ in range(PACKETS_A_TRANSACTION):
                loaded.last = next(self._packets)
                entries += [loaded.last, *lifecycle(loaded.last)]
            self._batch_no += 1
            batch = LogBatch(LOG_BATCH_VERSION, 0, 1, self._batch_no, datetime.now(UTC), entries, [])
            loaded.seconds += await self._commit(encode(batch), LOG_BATCH_TYPE)
            loaded.packets += PACKETS_A_TRANSACTION
        return loaded

    async def close(self) -> None:
        """Give the connection back."""
        await drop_connection(self._pool, self._connection)

    async def _commit(self, body: bytes, message_type: str) -> float:
        message = Message(body, message_id="load", type=message_type)
        began = time.perf_counter()
        received = read_message(0, Delivery(message, 1, "0", False))
        await commit(self._connection, 0, [received], self._notary)
        return time.perf_counter() - began


async def open_loader(pool: asyncpg.Pool) -> Loader:
    """A loader for an empty, migrated database; the pool lends it one connection."""
    loader = Loader(pool, await take_connection(pool, timedelta(seconds=60)))
    await loader.begin()
    return loader


def _packets() -> Iterator[PacketEntry]:
    """Packets without end: runs of 10,000, tasks of 50, in trees where each causes four others; 1.2 kB each."""
    number = 0
    while True:
        run: list[PacketEntry] = []
        run_id = f"run-{number // PACKETS_A_RUN}"
        for place in range(PACKETS_A_RUN):
            entry = packet_entry(
                UUID(int=uuid4().int),
                session_id=run_id,
                run_id=run_id,
                task_id=f"{run_id}-task-{place // PACKETS_A_TASK}",
                packet_type=("IDEA", "EVAL", "TRANSFER", "STATE")[place % 4],
                parent=run[(place - 1) // CHILDREN] if place else None,
                size_bytes=1050,
            )
            run.append(entry)
            number += 1
            yield entry

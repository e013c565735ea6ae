"""Fills a log with packets by the persister's own transaction, without a broker: for the figures of a long log."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from uuid import UUID, uuid4

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from msgspec.structs import replace
from tests.support.log import coordination, hop, lifecycle, packet_entry

from apc_bus.port import Delivery, Message
from apc_bus.settings import PersisterSettings
from apc_log.batch import (
    EPOCH_OPEN_TYPE,
    LOG_BATCH_TYPE,
    LOG_BATCH_VERSION,
    Entry,
    EpochOpen,
    HopEntry,
    LineageEntry,
    LogBatch,
    PacketEntry,
    SessionUpdate,
    encode,
)
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.tree import TreeSigner
from apc_persister.intake import read_message
from apc_persister.transaction import commit
from apc_persister.writer import drop_connection, take_connection

PACKETS_A_TRANSACTION = 500
"""About 2,000 entries with their hops, as many as a transaction of the persister takes."""
PACKETS_A_RUN = 10_000
PACKETS_A_TASK = 50
CHILDREN = 4
"""Packets that a packet causes, so that a run is a tree some levels deep."""
PROTOCOLS = 1_000
"""The first of them are transferred far more often than the last."""
MODES = ("WINNER_TO_LOSERS", "CROSS_USE_CASE", "COMMONS_SEED")
TYPES = ("IDEA", "EVAL", "TRANSFER", "STATE")
"""Of a run's packets, in turn."""
RARE_PHASE = "PROMOTION"
RARE_EVERY = 5_000
"""One packet in so many is of the rare phase."""


SessionOf = Callable[[PacketEntry, int], SessionUpdate]


@dataclass(slots=True)
class Loaded:
    """What a loader has written so far."""

    packets: int = 0
    seconds: float = 0.0
    """In the persister's transactions alone."""
    last: PacketEntry | None = None

    @property
    def rate(self) -> float:
        """Packets a second."""
        return self.packets / self.seconds


class Loader:
    """Writes packets into a shard of one database; made by `open_loader`, closed by `close`."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        connection: PoolConnectionProxy,
        packets: Iterator[PacketEntry],
        session_of: SessionOf,
        shard: int = 0,
    ) -> None:
        self.pool = pool
        self._connection = connection
        self._shard = shard
        self._notary = TreeSigner(shard, load_signer(PersisterSettings()))
        self._batch_no = 0
        self._packet_no = 0
        self._packets = packets
        self._session_of = session_of

    async def begin(self) -> None:
        """Take the shard."""
        await self._commit(encode(EpochOpen(LOG_BATCH_VERSION, self._shard, uuid4())), EPOCH_OPEN_TYPE)

    async def load(self, packets: int, a_transaction: int = PACKETS_A_TRANSACTION) -> Loaded:
        """Write so many packets more, with three hops each, so many in a transaction."""
        loaded = Loaded()
        while loaded.packets < packets:
            entries: list[Entry] = []
            sessions: dict[str, SessionUpdate] = {}
            for _ in range(a_transaction):
                self._packet_no += 1
                loaded.last = next(self._packets)
                entries += said_of(loaded.last, self._packet_no)
                sessions[loaded.last.session_id] = self._session_of(loaded.last, self._packet_no)
            self._batch_no += 1
            updates = [*sessions.values()]
            batch = LogBatch(LOG_BATCH_VERSION, self._shard, 1, self._batch_no, datetime.now(UTC), entries, updates)
            loaded.seconds += await self._commit(encode(batch), LOG_BATCH_TYPE)
            loaded.packets += a_transaction
        return loaded

    async def close(self) -> None:
        """Give the connection back."""
        await drop_connection(self.pool, self._connection)

    async def _commit(self, body: bytes, message_type: str) -> float:
        message = Message(body, message_id="load", type=message_type)
        began = time.perf_counter()
        received = read_message(self._shard, Delivery(message, 1, "0", False))
        await commit(self._connection, self._shard, [received], self._notary)
        return time.perf_counter() - began


async def open_loader(
    pool: asyncpg.Pool,
    packets: Iterator[PacketEntry] | None = None,
    session_of: SessionOf | None = None,
    *,
    shard: int = 0,
) -> Loader:
    """Return a loader for an empty, migrated database; the pool lends it one connection.

    Args:
        pool: connections to the database.
        packets: what to write, without end; runs of 10,000 packets unless given.
        session_of: returns the session after a packet and its number.
        shard: where to write.
    """
    connection = await take_connection(pool, timedelta(seconds=60))
    loader = Loader(pool, connection, packets or runs_of_packets(), session_of or _session, shard)
    await loader.begin()
    return loader


def runs_of_packets(
    prefix: str = "run", a_run: int = PACKETS_A_RUN, types: Sequence[str] = TYPES
) -> Iterator[PacketEntry]:
    """Packets without end: runs of 10,000 by default, tasks of 50, in trees where each causes four others; 1.2 kB each.

    Tasks have the same names in every run, as use cases have: a protocol is compared with what they show elsewhere.
    """
    number = 0
    while True:
        run: list[PacketEntry] = []
        run_id = f"{prefix}-{number // a_run}"
        for place in range(a_run):
            entry = packet_entry(
                UUID(int=uuid4().int),
                session_id=run_id,
                run_id=run_id,
                task_id=f"task-{place // PACKETS_A_TASK}",
                packet_type=types[place % len(types)],
                run_phase="RESEARCH" if place % RARE_EVERY != 17 else RARE_PHASE,
                parent=run[(place - 1) // CHILDREN] if place else None,
                size_bytes=1050,
            )
            if entry.packet_type == "EVAL":
                entry = _with_metrics(entry, number)
            elif entry.packet_type == "TRANSFER":
                entry = replace(entry, verdict="held")
            run.append(entry)
            number += 1
            yield entry


def said_of(packet: PacketEntry, number: int) -> list[Entry]:
    """Return what the orchestrator logs of a packet that goes through: three hops.

    A TRANSFER waits for its barrier and is throttled there one time in ten, and now and then a packet moves the
    session.
    """
    moved = [coordination(packet, number, "barrier", "RESEARCHING", "RESEARCHING")] if number % 100 == 0 else []
    if packet.packet_type != "TRANSFER":
        return [packet, *lifecycle(packet), *moved]
    held = hop(packet, ["emit", "schema_pass"], "DRAFT", "SCHEMA_VALIDATED")
    lineage = LineageEntry(
        packet.session_id, packet.packet_id, _protocol(number), [], [], number % 3 == 1, MODES[number % 3],
        "red", "blue", 0.5 + number % 50 / 100, 0.25 + number % 30 / 100,
    )  # fmt: skip
    if number % 10 == 3:
        return [packet, lineage, held, _throttled(packet), *moved]
    ruled = hop(packet, ["policy_pass", "route_selected"], "SCHEMA_VALIDATED", "ROUTED", attempt=1)
    return [packet, lineage, held, ruled, *lifecycle(packet)[1:], *moved]


def _throttled(packet: PacketEntry) -> HopEntry:
    ruled = hop(packet, ["policy_fail"], "SCHEMA_VALIDATED", "REJECTED_POLICY", attempt=1)
    return replace(ruled, metadata=b'{"refusal": {"code": "THROTTLE_SCORE"}}')


def _protocol(number: int) -> str:
    """Return a tenth of the TRANSFERs carry the first protocol, a quarter the first twenty."""
    spread = (number * 2_654_435_761 % 2**32) / 2**32
    return f"protocol-{int(PROTOCOLS * spread**3)}"


def _with_metrics(packet: PacketEntry, number: int) -> PacketEntry:
    document = json.loads(packet.body)
    document["payload"] = {"metric_set": {"outcome": number % 97 / 97, "drift_risk": number % 89 / 178}, "pass": True}
    body = json.dumps(document).encode()
    return replace(packet, body=body, packet_hash=sha256(body).digest())


def _session(packet: PacketEntry, step: int) -> SessionUpdate:
    return SessionUpdate(packet.session_id, packet.run_id, "RESEARCHING", False, 0, 0, step, 1, b"{}")

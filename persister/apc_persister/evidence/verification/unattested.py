"""The entries behind the last checkpoint: only what the guard of the database records itself may stand there.

The log writer signs what a batch of the gate brought in the transaction that stores it, so that rows of a batch never
stand behind the last checkpoint. What the guard records (an erasure, a maintenance; docs/explanation/log-security.md)
waits there for the writer. Anything else was not sent by a gate.
"""

from collections.abc import AsyncIterator
from itertools import count

from apc_log.connection import AnyConnection
from apc_log.entries import KINDS
from apc_persister.errors import EntryForeign
from apc_persister.evidence.stored_rows import Leaves, leaves_of, prepare_reader, read_rows

RECORDED_KINDS = ("log",)
"""Kinds of entries that the guard records; nobody else can (migrations/sql/0107_guard.sql)."""
_PIECE = 50_000


async def read_recorded(connection: AnyConnection, shard: int, first: int, last: int) -> AsyncIterator[list[bytes]]:
    """Yield the leaves of entries `first` to `last`, which stand behind the last checkpoint, piece by piece.

    Raises:
        EntryForeign: one of them is missing, stands twice, or is none that the guard records.
    """
    await prepare_reader(connection)
    for start in range(first, last + 1, _PIECE):
        end = min(start + _PIECE - 1, last)
        leaves = leaves_of(start, end, await read_rows(connection, shard, start, end, RECORDED_KINDS))
        await _check(connection, shard, leaves)
        yield leaves.hashes


async def _check(connection: AnyConnection, shard: int, leaves: Leaves) -> None:
    last = leaves.first + len(leaves.hashes) - 1
    foreign: dict[int, str] = {}
    for kind, table in KINDS.items():
        if kind not in RECORDED_KINDS:
            query = f"SELECT min(seq) FROM apc_log.{table} WHERE shard = $1 AND seq BETWEEN $2 AND $3"
            seq = await connection.fetchval(query, shard, leaves.first, last)
            if seq is not None:
                foreign[seq] = table
    missing = next((seq for seq, leaf in zip(count(leaves.first), leaves.hashes, strict=False) if not leaf), None)
    if foreign and (missing is None or min(foreign) <= missing):
        seq = min(foreign)
        raise EntryForeign(shard, seq, f"is a row of {foreign[seq]} that came in no batch of a gate")
    if missing is not None:
        raise EntryForeign(shard, missing, "is missing, or of no known kind and version")

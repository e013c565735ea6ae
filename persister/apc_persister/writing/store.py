"""Puts placed entries into their tables: COPY of everything, and when that fails, of halves, down to the
culprit."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

import asyncpg

from apc_log.batch import PacketEntry
from apc_log.connection import AnyConnection
from apc_log.table_rows import Placed, Rows, leaves_of, rows_of
from apc_persister.writing.conflicts import DUPLICATE_EVENT, UNSTORABLE, duplicate_id, unstorable

ENTRY_ERRORS = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    # What the encoders of asyncpg raise for a value that does not fit its column.
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
)
"""The fault lies with an entry; every other error lies with the database and is tried again."""

HASHED_AT_ONCE = 100
"""Entries that are hashed without a thread: their hashes take less than waking one."""

_KNOWN = """
SELECT known.session_id, known.packet_id, known.packet_hash
FROM unnest($1::text[], $2::uuid[]) AS wanted(session_id, packet_id)
JOIN apc_log.packet_ids AS known USING (session_id, packet_id)
"""


async def replace_duplicates(connection: AnyConnection, placed: list[Placed]) -> None:
    """Replace every packet whose id is in the log, or earlier in this list, by a conflict."""
    packets = [(at, item.entry) for at, item in enumerate(placed) if isinstance(item.entry, PacketEntry)]
    if not packets:
        return
    sessions = [packet.session_id for _, packet in packets]
    ids = [packet.packet_id for _, packet in packets]
    known = {(row[0], row[1]): row[2] for row in await connection.fetch(_KNOWN, sessions, ids)}
    for at, packet in packets:
        identity = (packet.session_id, packet.packet_id)
        first_hash = known.get(identity)
        if first_hash is None:
            known[identity] = packet.packet_hash
        else:
            placed[at] = placed[at]._replace(entry=duplicate_id(packet, first_hash))


async def store(connection: AnyConnection, placed: Sequence[Placed], recorded_at: datetime) -> list[bytes]:
    """Copy the rows of these entries (COPY); return their leaf hashes. `recorded_at` is the time of the transaction.

    Raises one of ENTRY_ERRORS when an entry cannot be stored, or has no canonical form.
    """
    rows = rows_of(placed)
    if len(placed) <= HASHED_AT_ONCE:
        leaves = leaves_of(rows, recorded_at)
        await _copy(connection, rows)
        return leaves
    # In a thread: while the server works on a COPY, nothing else is to be done here.
    hashing = asyncio.create_task(asyncio.to_thread(leaves_of, rows, recorded_at))
    try:
        await _copy(connection, rows)
    finally:
        await asyncio.wait({hashing})
    return hashing.result()


async def _copy(connection: AnyConnection, rows: Rows) -> None:
    for table, records in rows.items():
        await connection.copy_records_to_table(
            table.name, schema_name="apc_log", columns=table.columns, records=records
        )


async def store_carefully(connection: AnyConnection, placed: Sequence[Placed], recorded_at: datetime) -> list[Placed]:
    """Store entries, but record one that cannot be stored as a conflict at its place. Returns what was
    stored.

    One bad entry among n costs about 2 log2(n) COPYs of shrinking halves.
    """
    try:
        async with connection.transaction():
            await store(connection, placed, recorded_at)
        return list(placed)
    except ENTRY_ERRORS as error:
        if len(placed) > 1:
            middle = len(placed) // 2
            return [
                *await store_carefully(connection, placed[:middle], recorded_at),
                *await store_carefully(connection, placed[middle:], recorded_at),
            ]
        is_known = isinstance(error, asyncpg.UniqueViolationError)
        kind = DUPLICATE_EVENT if is_known else UNSTORABLE
        conflict = placed[0]._replace(entry=unstorable(placed[0].entry, kind, error))
        await store(connection, [conflict], recorded_at)
        return [conflict]

"""What stands beside the log and follows from it: the sessions' present state, and the counts that lineage summaries
are read from."""

from collections.abc import Sequence
from datetime import datetime

from apc_contracts.vocabulary import PacketType
from apc_log.batch import HopEntry, PacketEntry, SessionUpdate
from apc_log.connection import AnyConnection
from apc_log.table_rows import Placed
from apc_persister.writing.conflicts import UNSTORABLE, unstorable
from apc_persister.writing.intake import BatchIntake
from apc_persister.writing.store import ENTRY_ERRORS, store

_UPSERT_SESSIONS = """
INSERT INTO apc_log.sessions (shard, epoch, batch_no, session_id, run_id, state, is_terminal,
                              round, generation, step, open_deliveries, document)
SELECT $1, * FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::boolean[],
                         $8::integer[], $9::integer[], $10::bigint[], $11::integer[], $12::jsonb[])
ON CONFLICT (session_id) DO UPDATE SET
    shard = excluded.shard, epoch = excluded.epoch, batch_no = excluded.batch_no, run_id = excluded.run_id,
    state = excluded.state, is_terminal = excluded.is_terminal, round = excluded.round,
    generation = excluded.generation, step = excluded.step, open_deliveries = excluded.open_deliveries,
    document = excluded.document, updated_at = excluded.updated_at
"""
_TALLY = "SELECT apc_log.tally($1, $2, $3)"
_TALLIED = frozenset({PacketType.TRANSFER, PacketType.EVAL})

SessionState = tuple[int, int, SessionUpdate]
"""epoch, batch_no, row."""


async def project_sessions(connection: AnyConnection, shard: int, states: Sequence[SessionState]) -> None:
    """Upsert the sessions that the batches touched. Raises one of ENTRY_ERRORS on a document that is no
    JSON."""
    if not states:
        return
    rows = [row for _, _, row in states]
    await connection.execute(
        _UPSERT_SESSIONS,
        shard,
        [epoch for epoch, _, _ in states],
        [batch_no for _, batch_no, _ in states],
        *([getattr(row, name) for row in rows] for name in SessionUpdate.__struct_fields__),
    )


async def project_sessions_carefully(connection: AnyConnection, intake: BatchIntake, now: datetime) -> None:
    """Project sessions one by one: a state that cannot be stored is recorded as a conflict, at the
    end."""
    for state in intake.sessions.values():
        try:
            async with connection.transaction():
                await project_sessions(connection, intake.head.shard, [state])
        except ENTRY_ERRORS as error:
            epoch, batch_no, row = state
            intake.place([unstorable(row, UNSTORABLE, error)], epoch, batch_no, now)
            await store(connection, intake.placed[-1:], now)


async def tally(connection: AnyConnection, placed: Sequence[Placed]) -> None:
    """Count the verdicts on TRANSFERs and the metrics of EVALs among these entries, all of one shard, once stored.

    What they say is read back by the views that define it (migrations/sql/0105_analytics.sql), so both cannot differ.
    """
    if any(_is_tallied(item) for item in placed):
        (shard, first, _, _), (_, last, _, _) = placed[0].place, placed[-1].place
        await connection.execute(_TALLY, shard, first, last)


def _is_tallied(item: Placed) -> bool:
    match item.entry:
        case PacketEntry(packet_type=packet_type):
            return packet_type in _TALLIED
        case HopEntry(recipient="", from_state="SCHEMA_VALIDATED"):
            return True
    return False

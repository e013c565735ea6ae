"""Rebuilds the rows of table sessions: each session is played again from its entries, under its contracts."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson

from apc_contracts.contract.contract import Contract
from apc_contracts.replay import ReplayDiffers, ReplayImpossible
from apc_contracts.replay.columns import as_json
from apc_contracts.session import Session
from apc_log.batch import SessionUpdate
from apc_log.connection import AnyConnection
from apc_log.queries.replaying.recorded_sessions import DatabaseRecords
from apc_log.queries.replaying.replay_checks import ContractBook
from apc_persister.evidence.verification.sessions import UNPLAYABLE, list_sessions, play_session
from apc_persister.evidence.verification.verify import UNREADABLE

_UNNAMED = "DELETE FROM apc_log.sessions WHERE session_id IS NULL"
_DELETE = "DELETE FROM apc_log.sessions WHERE session_id = $1"
_INSERT = """
INSERT INTO apc_log.sessions (shard, epoch, batch_no, session_id, run_id, state, is_terminal,
                              round, generation, step, open_deliveries, document)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::jsonb)
"""
_STORED = """
SELECT shard, run_id, state, is_terminal, round, generation, step, open_deliveries, document::text AS document
FROM apc_log.sessions WHERE session_id = $1
"""


@dataclass(slots=True)
class RebuiltSessions:
    """What a rebuild of the sessions did."""

    mended: int = 0
    """Rows that were not what the entries say, and are again."""
    left: list[str] = field(default_factory=list)
    """Why a session could not be played again, a sentence each: its row stays as it is."""


async def rebuild_sessions(connection: AnyConnection, contracts: Iterable[Contract]) -> RebuiltSessions:
    """Make the row of each session what its entries say, in the transaction of the connection.

    `contracts` are available beside those that the log holds.
    """
    done = RebuiltSessions()
    records = DatabaseRecords(connection)
    book = ContractBook(records, contracts)
    await connection.execute(_UNNAMED)
    for session_id in await list_sessions(connection):
        try:
            async with connection.transaction():
                done.mended += await _mend(connection, records, book, session_id)
        except (ReplayDiffers, ReplayImpossible, *UNREADABLE, *UNPLAYABLE) as error:
            done.left.append(f"session {session_id!r}: {error}")
    return done


async def _mend(connection: AnyConnection, records: DatabaseRecords, book: ContractBook, session_id: str) -> bool:
    """Return whether the row had to be changed."""
    replay, last = await play_session(records, book, session_id)
    stored = await connection.fetch(_STORED, session_id)
    if replay.session is None or last is None:
        await connection.execute(_DELETE, session_id)
        return bool(stored)
    row = _row(session_id, replay.session)
    wanted = {"shard": last.shard, **{name: getattr(row, name) for name in SessionUpdate.__struct_fields__[1:]}}
    if len(stored) == 1 and _readable(dict(stored[0])) == _readable(wanted):
        return False
    await connection.execute(_DELETE, session_id)
    columns = [getattr(row, name) for name in SessionUpdate.__struct_fields__[:-1]]
    await connection.execute(_INSERT, last.shard, last.epoch, last.batch_no, *columns, row.document.decode())
    return True


def _row(session_id: str, session: Session) -> SessionUpdate:
    document = session.document
    return SessionUpdate(
        session_id=session_id,
        run_id=document.run_id,
        state=document.state,
        is_terminal=session.is_terminal,
        round=document.round,
        generation=document.generation,
        step=document.step,
        open_deliveries=session.open_deliveries,
        document=orjson.dumps(as_json(document)),
    )


def _readable(columns: dict[str, object]) -> dict[str, object]:
    """Return the columns with the document as what it says, not how it is written."""
    text = columns["document"]
    assert isinstance(text, str | bytes)
    return columns | {"document": orjson.loads(text)}

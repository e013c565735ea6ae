"""Compares table sessions with the entries: each session is played again under its contracts, and must come out so."""

import re
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import orjson

from apc_contracts.contract.contract import Contract
from apc_contracts.errors import ApcError
from apc_contracts.replay.entries import Entry, ReplayDiffers, ReplayImpossible
from apc_contracts.replay.session_replay import SessionReplay
from apc_contracts.session.session import Session
from apc_contracts.text import numbered
from apc_contracts.vocabulary import PRESENCE_SESSION
from apc_log.errors import ArchiveUnavailable
from apc_log.heads import AnyConnection
from apc_log.queries.replay import ContractBook, PostgresRecords
from apc_persister.verification.findings import MOST_FINDINGS, LogFinding
from apc_persister.verification.verify import UNREADABLE

# Sessions that ended and of which a segment was let go of: the archive has their entries.
_IN_ARCHIVE = """
SELECT session_id FROM apc_log.sessions AS session WHERE NOT is_open AND EXISTS (
    SELECT FROM apc_log.segments AS gone WHERE gone.shard = session.shard AND gone.state IN ('released', 'expired')
    AND gone.first_seq <= session.last_seq AND gone.last_seq >= session.first_seq
)
"""
_ELSEWHERE = "{} has entries of it: `apc packet replay --verify` reads them from the archive"
# Ranges are those of the entries to the entry, so that a reader who trusts them misses nothing and a change is found.
_RANGES = f"""
SELECT session.session_id FROM apc_log.sessions AS session JOIN (
    SELECT session_id, min(shard) AS low, max(shard) AS high, min(seq) AS first, max(seq) AS last FROM (
        {
    " UNION ALL ".join(
        f"SELECT session_id, shard, seq FROM apc_log.{table}"
        for table in ("agent_packets", "packet_events", "packet_lineage", "coordination_events", "packet_conflicts")
    )
}
    ) AS entry GROUP BY session_id
) AS named USING (session_id)
WHERE NOT EXISTS (SELECT FROM apc_log.shards WHERE bounded_seq < next_seq - 1)
  AND session.session_id NOT IN (SELECT session_id FROM ({_IN_ARCHIVE}) AS gone)
  AND CASE WHEN named.low = session.shard AND named.high = session.shard
           THEN session.first_seq IS DISTINCT FROM named.first OR session.last_seq IS DISTINCT FROM named.last
           ELSE session.first_seq IS DISTINCT FROM 0 END
ORDER BY session.session_id LIMIT {MOST_FINDINGS}
"""
_IDS = """
SELECT DISTINCT session_id FROM (
    SELECT session_id FROM apc_log.sessions
    UNION ALL SELECT session_id FROM apc_log.agent_packets WHERE verdict <> 'refused'
) AS named WHERE session_id <> $1 ORDER BY session_id
"""
_UNNAMED = "SELECT count(*) FROM apc_log.sessions WHERE session_id IS NULL"
_ROWS = """
SELECT shard, epoch, batch_no, run_id, state, is_terminal, round, generation, step, open_deliveries, is_open,
       document::text AS document
FROM apc_log.sessions WHERE session_id = $1
"""
UNPLAYABLE = (ApcError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What entries raise that no orchestrator has written."""


@dataclass(slots=True)
class SessionComparison:
    """What was compared."""

    compared: int = 0
    unplayed: list[str] = field(default_factory=list)
    """Why a session could not be played again, a sentence each: its bodies are encrypted, its contract is not held."""
    findings: list[LogFinding] = field(default_factory=list)


async def compare_sessions(
    connection: AnyConnection, contracts: Iterable[Contract], *, run_id: str | None = None
) -> SessionComparison:
    """Compare every session's row with its entries, as both are now; with `run_id` those of one run.

    `contracts` are available beside those that the log holds.

    Raises:
        asyncpg.InsufficientPrivilegeError: the database's user may not read the log.
    """
    sessions = SessionComparison()
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        records = PostgresRecords(connection, trusts_ranges=False)
        book = ContractBook(records, contracts)
        unnamed = await connection.fetchval(_UNNAMED)
        if unnamed:
            sessions.findings.append(LogFinding(None, 1, f"{unnamed} rows of sessions name no session", "sessions"))
        for row in await connection.fetch(_RANGES) if run_id is None else ():
            what = f"the range of session {row['session_id']!r} is not that of its entries"
            sessions.findings.append(LogFinding(None, 1, what, "sessions"))
        try:
            chosen = await (list_sessions(connection) if run_id is None else records.sessions(run_id))
        except ArchiveUnavailable as error:
            chosen = []
            sessions.unplayed.append(f"run {run_id!r}: {_ELSEWHERE.format(error.segment)}")
        archived = {row[0] for row in await connection.fetch(_IN_ARCHIVE)}.intersection(chosen)
        if archived:
            sessions.unplayed.append(f"the archive has entries of {numbered(len(archived), 'session')} that ended")
        for session_id in (one for one in chosen if one not in archived):
            try:
                async with connection.transaction():
                    await _compare(connection, records, book, session_id, sessions)
            except asyncpg.InsufficientPrivilegeError:
                raise
            except ReplayDiffers as error:
                sessions.findings.append(_finding(error.shard, error.seq, session_id, _difference(error)))
            except ReplayImpossible as error:
                sessions.unplayed.append(f"session {session_id!r}: {error}")
            except ArchiveUnavailable as error:
                sessions.unplayed.append(f"session {session_id!r}: {_ELSEWHERE.format(error.segment)}")
            except (*UNREADABLE, *UNPLAYABLE) as error:
                sessions.findings.append(_finding(None, 1, session_id, f"cannot be read: {error!r}"))
    return sessions


async def list_sessions(connection: AnyConnection) -> list[str]:
    """Return every session that has a row or a packet that was not refused."""
    return [row[0] for row in await connection.fetch(_IDS, PRESENCE_SESSION)]


async def play_session(
    records: PostgresRecords, book: ContractBook, session_id: str
) -> tuple[SessionReplay, Entry | None]:
    """Play a session again; return where it stands, and its last entry.

    Raises:
        ReplayDiffers: an entry does not come out again. ReplayImpossible: a body or a contract is not there.
    """
    replay = SessionReplay(session_id, book.get)
    last: Entry | None = None
    async with aclosing(records.batches(session_id)) as batches:
        async for batch in batches:
            await book.look_up(batch)
            replay.take(batch)
            last = batch[-1]
    return replay, last


async def _compare(
    connection: AnyConnection,
    records: PostgresRecords,
    book: ContractBook,
    session_id: str,
    sessions: SessionComparison,
) -> None:
    replay, last = await play_session(records, book, session_id)
    sessions.compared += 1
    rows = await connection.fetch(_ROWS, session_id)
    wanted = 0 if replay.session is None else 1
    if len(rows) != wanted or last is None or replay.session is None:
        message = f"table sessions has {len(rows)} rows of it, the entries say {wanted}"
        if len(rows) != wanted:
            sessions.findings.append(_finding(None, 1, session_id, message))
        return
    for name, value in _expected(replay.session, last).items():
        if rows[0][name] != value:
            message = f"column {name} is {rows[0][name]!r}, the entries say {value!r}"
            sessions.findings.append(_finding(last.shard, last.seq, session_id, message))
    replay.check_document(orjson.loads(rows[0]["document"] or "null") or {}, (last.shard, last.seq))


_PLAIN = re.compile(r"[\w.:+/-]{0,80}", re.ASCII)


def _difference(error: ReplayDiffers) -> str:
    """Return where an entry differs; the two values only if neither is a text or an object that somebody wrote."""
    where = f"entry {error.shard}/{error.seq}, {error.what}"
    if all(_PLAIN.fullmatch(str(value)) for value in (error.recorded, error.recomputed)):
        return f"{where} is {error.recorded}, the entries say {error.recomputed}"
    return f"{where} is not what the entries say"


def _expected(session: Session, last: Entry) -> Mapping[str, Any]:
    document = session.document
    return {
        "shard": last.shard,
        "run_id": document.run_id,
        "state": document.state,
        "is_terminal": session.is_terminal,
        "round": document.round,
        "generation": document.generation,
        "step": document.step,
        "open_deliveries": session.open_deliveries,
        "is_open": session.open_deliveries > 0 or not session.is_terminal,
    }


def _finding(shard: int | None, seq: int, session_id: str, message: str) -> LogFinding:
    return LogFinding(shard, seq, f"session {session_id!r}: {message}", f"sessions {session_id}")

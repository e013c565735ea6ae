"""One transaction of the writer: messages in, rows and the moved head out, or nothing at all."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from apc_bus.crash_points import crash_point
from apc_log.connection import AnyConnection
from apc_log.table_rows import leaves_of, rows_of
from apc_persister.encryption import Encryption
from apc_persister.errors import LogStopped
from apc_persister.evidence.tree.tree_signer import TreeSigner
from apc_persister.registry import check_changes, with_checked_changes
from apc_persister.writing.head import begin_intake, lock_head, move_head
from apc_persister.writing.intake import BatchIntake, Received
from apc_persister.writing.projection import project_sessions, project_sessions_carefully, tally
from apc_persister.writing.store import ENTRY_ERRORS, replace_duplicates, store, store_carefully


@dataclass(frozen=True, slots=True)
class Committed:
    """What a transaction did."""

    messages: int
    """How many of the messages, from the first, are done and may be acknowledged."""
    entries: int
    duplicates: int
    """Batches and openings that were in the log already."""
    fenced: int
    unstored: int
    """Entries that became conflicts of the writer."""


async def commit(
    connection: AnyConnection,
    shard: int,
    messages: Sequence[Received],
    signer: TreeSigner,
    encryption: Encryption | None = None,
) -> Committed:
    """Write these messages, at least one, in one transaction; when this returns they are committed.

    First everything in bulk; if an entry is at fault, again with the culprits set aside as conflicts. When a
    later message is a reason to stop, the ones before it are committed.

    Raises:
        LogStopped: the first message cannot be placed; nothing was written.
        asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError: nothing was written, or, when
        the connection broke during COMMIT, that is unknown: doing it again is safe.
    """
    try:
        done = await _attempt(connection, shard, messages, signer, encryption, is_careful=False)
    except ENTRY_ERRORS:
        done = await _attempt(connection, shard, messages, signer, encryption, is_careful=True)
    crash_point("persister.after_commit")
    return done


async def _attempt(
    connection: AnyConnection,
    shard: int,
    messages: Sequence[Received],
    signer: TreeSigner,
    encryption: Encryption | None,
    *,
    is_careful: bool,
) -> Committed:
    async with connection.transaction():
        head, now = await lock_head(connection, shard)
        first_seq = head.next_seq
        intake = await begin_intake(connection, head, messages)
        taken = _take(intake, messages, now)
        if encryption is not None:
            await encryption.apply(connection, intake.placed)
        before = len(intake.placed)
        entries = [item.entry for item in intake.placed]
        await replace_duplicates(connection, intake.placed)
        if is_careful:
            leaves = await _write_carefully(connection, intake, now)
        else:
            check_changes(intake.placed)
            leaves = await store(connection, intake.placed, now)
            await project_sessions(connection, shard, list(intake.sessions.values()))
        await tally(connection, intake.placed)
        tree = await signer.attest(connection, first_seq, leaves)
        await move_head(connection, intake)
        crash_point("persister.before_commit")
    signer.confirm(tree)
    unstored = len(intake.placed) - before
    unstored += sum(item.entry is not entry for item, entry in zip(intake.placed, entries, strict=False))
    return Committed(taken, len(intake.placed), intake.duplicates, intake.fenced, unstored)


def _take(intake: BatchIntake, messages: Sequence[Received], now: datetime) -> int:
    for taken, message in enumerate(messages):
        try:
            intake.take(message, now)
        except LogStopped:
            if taken == 0:
                raise
            return taken
    return len(messages)


async def _write_carefully(connection: AnyConnection, intake: BatchIntake, now: datetime) -> list[bytes]:
    checked = with_checked_changes(intake.placed)
    intake.placed[:] = await store_carefully(connection, checked, now)
    await project_sessions_carefully(connection, intake, now)
    return leaves_of(rows_of(intake.placed), now)

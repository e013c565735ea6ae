"""The head of a shard in the database: taken under lock at the start of a transaction, moved at its end."""

from collections.abc import Sequence
from datetime import datetime

from apc_log.batch import EpochOpen, LogBatch
from apc_log.connection import AnyConnection
from apc_persister.writing.intake import BatchIntake, Epoch, Head, Received

_LOCK = """
SELECT epoch, holder, batch_no, next_seq, now() AS now
FROM apc_log.shards WHERE shard = $1 FOR UPDATE
"""
_CREATE = """
INSERT INTO apc_log.shards (shard, epoch, holder, batch_no, next_seq)
VALUES ($1, 0, NULL, 0, 1) ON CONFLICT (shard) DO NOTHING
"""
_EPOCHS = """
SELECT epoch, holder, mark_epoch, mark_batch_no FROM apc_log.shard_epochs
WHERE shard = $1 AND (holder = ANY($2::uuid[]) OR mark_epoch = ANY($3::bigint[]))
"""
_OPEN = """
INSERT INTO apc_log.shard_epochs (shard, epoch, holder, mark_epoch, mark_batch_no)
VALUES ($1, $2, $3, $4, $5)
"""
_MOVE = """
UPDATE apc_log.shards SET epoch = $2, holder = $3, batch_no = $4, next_seq = $5 WHERE shard = $1
"""
_KEEP_CONTRACT = """
INSERT INTO apc_log.contracts (contract_hash, document) VALUES (sha256($1), $1) ON CONFLICT DO NOTHING
"""


async def lock_head(connection: AnyConnection, shard: int) -> tuple[Head, datetime]:
    """Return the head, locked until the transaction ends, and the transaction's time."""
    row = await connection.fetchrow(_LOCK, shard)
    if row is None:
        await connection.execute(_CREATE, shard)
        row = await connection.fetchrow(_LOCK, shard)
        assert row is not None
    return Head(shard, row["epoch"], row["holder"], row["batch_no"], row["next_seq"]), row["now"]


async def begin_intake(connection: AnyConnection, head: Head, messages: Sequence[Received]) -> BatchIntake:
    """Return an empty intake that knows the earlier epochs which these messages ask for."""
    holders = [m.content.holder for m in messages if isinstance(m.content, EpochOpen)]
    older = {m.content.epoch for m in messages if isinstance(m.content, LogBatch)} - {head.epoch}
    intake = BatchIntake(head, {}, {})
    if holders or older:
        for row in await connection.fetch(_EPOCHS, head.shard, holders, sorted(older)):
            epoch = Epoch(**row)
            intake.known[epoch.holder] = epoch
            intake.last_batch[epoch.mark_epoch] = epoch.mark_batch_no
    return intake


async def move_head(connection: AnyConnection, intake: BatchIntake) -> None:
    """Write the epochs that were given, the contracts of their holders, and where the log ends now."""
    head = intake.head
    for epoch in intake.opened:
        await connection.execute(_OPEN, head.shard, epoch.epoch, epoch.holder, epoch.mark_epoch, epoch.mark_batch_no)
    for document in intake.contracts:
        await connection.execute(_KEEP_CONTRACT, document)
    await connection.execute(_MOVE, head.shard, head.epoch, head.holder, head.batch_no, head.next_seq)

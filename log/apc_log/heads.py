"""Where the log of each shard ends, and which epochs were given."""

from dataclasses import dataclass
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

AnyConnection = asyncpg.Connection | PoolConnectionProxy
"""A connection, or a pool's proxy of one."""


_HOLDS_LOG = "SELECT to_regclass('apc_log.agent_packets') IS NOT NULL"
_HEAD = "SELECT epoch, holder, batch_no, next_seq FROM apc_log.shards WHERE shard = $1"
_GIVEN = """
SELECT given.epoch, given.mark_epoch, given.mark_batch_no, head.epoch AS newest
FROM apc_log.shard_epochs AS given JOIN apc_log.shards AS head USING (shard)
WHERE given.shard = $1 AND given.holder = $2
"""
_EPOCHS = "SELECT shard, epoch FROM apc_log.shards ORDER BY shard"
_ENDS = "SELECT shard, next_seq - 1 AS last FROM apc_log.shards ORDER BY shard"
_TREE_SIZES = """
SELECT shard, coalesce(tree_size, 0) AS size FROM apc_log.shards LEFT JOIN apc_log.log_edges USING (shard)
ORDER BY shard
"""


@dataclass(frozen=True, slots=True)
class ShardHead:
    """Where the log of a shard ends; epoch 0 before the first holder."""

    epoch: int = 0
    holder: UUID | None = None
    batch_no: int = 0
    next_seq: int = 1


@dataclass(frozen=True, slots=True)
class GivenEpoch:
    """The epoch that the persister gave to a holder, and the last batch of the holder before."""

    epoch: int
    mark_epoch: int
    mark_batch_no: int
    newest: int
    """The newest epoch of the shard: another one means that the given one is over."""


async def holds_log(pool: asyncpg.Pool) -> bool:
    """Return whether the database has the tables of the log."""
    return bool(await pool.fetchval(_HOLDS_LOG))


async def read_head(pool: asyncpg.Pool, shard: int) -> ShardHead:
    """Return where the log of a shard ends."""
    row = await pool.fetchrow(_HEAD, shard)
    return ShardHead() if row is None else ShardHead(**row)


async def read_given_epoch(pool: asyncpg.Pool, shard: int, holder: UUID) -> GivenEpoch | None:
    """Return the epoch that was given to a holder; None while there is none."""
    row = await pool.fetchrow(_GIVEN, shard, holder)
    return None if row is None else GivenEpoch(**row)


async def read_epochs(connection: asyncpg.Pool | AnyConnection) -> dict[int, int]:
    """Return the newest epoch of every shard that ever had a holder."""
    return {row["shard"]: row["epoch"] for row in await connection.fetch(_EPOCHS)}


async def read_ends(connection: asyncpg.Pool | AnyConnection) -> dict[int, int]:
    """Return the seq of the last entry of every shard; 0 = the shard has none."""
    return {row["shard"]: row["last"] for row in await connection.fetch(_ENDS)}


async def read_tree_sizes(connection: asyncpg.Pool | AnyConnection) -> dict[int, int]:
    """Return how many entries of every shard stand in its Merkle tree."""
    return {row["shard"]: row["size"] for row in await connection.fetch(_TREE_SIZES)}

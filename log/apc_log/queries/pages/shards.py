"""The end of each shard's log: heads, newest checkpoints, exports."""

from dataclasses import dataclass
from datetime import datetime

import asyncpg

_SHARDS = """
SELECT shards.shard, shards.epoch, shards.next_seq, head.tree_size, head.root_hash, head.note, head.recorded_at,
       export.tree_size AS exported, export.exported_at
FROM apc_log.shards
LEFT JOIN LATERAL (
    SELECT tree_size, root_hash, note, recorded_at FROM apc_log.log_checkpoints
    WHERE shard = shards.shard ORDER BY tree_size DESC LIMIT 1
) AS head ON true
LEFT JOIN LATERAL (
    SELECT tree_size, exported_at FROM apc_log.checkpoint_exports
    WHERE shard = shards.shard ORDER BY tree_size DESC LIMIT 1
) AS export ON true
ORDER BY shards.shard
"""
_HEADS = "SELECT shard, next_seq - 1 AS last FROM apc_log.shards"


@dataclass(frozen=True, slots=True)
class ShardEnd:
    """Where the log of a shard ends, and what is signed and exported of it."""

    shard: int
    epoch: int
    next_seq: int
    tree_size: int | None
    root_hash: bytes | None
    note: str | None
    recorded_at: datetime | None
    exported: int | None
    exported_at: datetime | None


async def list_shard_ends(pool: asyncpg.Pool) -> list[ShardEnd]:
    """Return the end of every shard's log, by shard."""
    return [ShardEnd(**row) for row in await pool.fetch(_SHARDS)]


async def read_heads(pool: asyncpg.Pool) -> dict[int, int]:
    """Return the last committed seq of every shard; one small read, for polling."""
    return {row["shard"]: row["last"] for row in await pool.fetch(_HEADS)}

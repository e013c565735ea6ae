"""Looks at the checkpoints: what came after the last one outside can be changed by an administrator unseen."""

from datetime import timedelta

import asyncpg

from apc_console.doctor.finding import Finding, ok, wrong

TOLERANCE = timedelta(seconds=10)
"""An exporter at work brings a checkpoint out within a second or so."""
_EXPORTS = """
SELECT made.shard, best.target, best.tree_size,
       (SELECT extract(epoch FROM clock_timestamp() - recorded_at)::double precision FROM apc_log.log_checkpoints AS c
        WHERE c.shard = made.shard AND c.tree_size <= best.tree_size ORDER BY c.tree_size DESC LIMIT 1) AS exported_age,
       (SELECT extract(epoch FROM clock_timestamp() - recorded_at)::double precision FROM apc_log.log_checkpoints AS c
        WHERE c.shard = made.shard AND c.tree_size > coalesce(best.tree_size, 0) ORDER BY c.tree_size LIMIT 1)
        AS waiting_age
FROM apc_log.log_edges AS made
LEFT JOIN LATERAL (
    SELECT target, tree_size FROM apc_log.checkpoint_exports AS e
    WHERE e.shard = made.shard AND e.tree_size > 0 ORDER BY e.tree_size DESC LIMIT 1
) AS best ON true
ORDER BY made.shard
"""


async def look_at_checkpoints(pool: asyncpg.Pool) -> list[Finding]:
    """Of each shard: how old the last exported checkpoint is, and for how long the next one waits."""
    return [_shard(row) for row in await pool.fetch(_EXPORTS)]


def _shard(row: asyncpg.Record) -> Finding:
    name, waiting = f"shard {row['shard']}", row["waiting_age"]
    if row["target"] is None:
        said = f"{name}: no checkpoint was exported yet"
    else:
        said = (
            f"{name}: {row['tree_size']} entries are exported to {row['target']}, made {row['exported_age']:.0f} s ago"
        )
    if waiting is None:
        return ok("checkpoints", f"{said}; none waits")
    said = f"{said}; the next one waits for {waiting:.0f} s"
    if waiting <= TOLERANCE.total_seconds():
        return ok("checkpoints", said)
    fix = "let the persister run, and see its log for checkpoints_not_exported; check APC_CHECKPOINTS_URL"
    return wrong("checkpoints", said, fix)

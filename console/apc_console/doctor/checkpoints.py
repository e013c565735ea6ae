"""Checks of the checkpoints: an administrator can change unseen what was logged after the last exported one."""

from datetime import timedelta

import asyncpg

from apc_console.doctor.finding import Finding, ok, wrong
from apc_contracts.text import numbered
from apc_log.queries.health import read_exports

TOLERANCE = timedelta(seconds=10)
"""A working exporter exports a checkpoint within about a second."""


async def look_at_checkpoints(pool: asyncpg.Pool) -> list[Finding]:
    """Check, for each shard, the age of the last exported checkpoint, and how long the next one has waited."""
    return [_shard(row) for row in await read_exports(pool)]


def _shard(row: asyncpg.Record) -> Finding:
    name, waiting = f"shard {row['shard']}", row["waiting_age"]
    if row["target"] is None:
        said = f"{name}: no checkpoint was exported yet"
    else:
        entries = numbered(row["tree_size"], "entry is", "entries are")
        said = f"{name}: {entries} exported to {row['target']}, made {row['exported_age']:.0f} s ago"
    if waiting is None:
        return ok("checkpoints", f"{said}; none waits")
    said = f"{said}; the next one waits for {waiting:.0f} s"
    if waiting <= TOLERANCE.total_seconds():
        return ok("checkpoints", said)
    fix = "let the persister run, and see its log for checkpoints_not_exported; check APC_CHECKPOINTS_URL"
    return wrong("checkpoints", said, fix)

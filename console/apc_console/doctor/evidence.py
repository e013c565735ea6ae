"""Quick checks of the log without reading it whole, and of additions to its tables by their owner."""

import asyncpg

from apc_console.doctor.finding import Finding, ok, wrong
from apc_persister.database.migrate import read_additions
from apc_persister.verification import findings
from apc_persister.verification.log_ends import check_ends, check_registry

VERIFY = "run `apc log verify`; docs/explanation/log-security.md says how to go on after a forgery"
TAKE_OUT = "take it out inside apc_guard.maintain(), or say why it is there; then `apc log verify`"
RESTORE = "make it again inside apc_guard.maintain() as the migrations do; then `apc log verify`"


async def look_at_evidence(pool: asyncpg.Pool) -> list[Finding]:
    """Check the end of each shard, the registry, and constraints, defaults, indexes, triggers, rules and policies."""
    async with pool.acquire() as connection:
        ends = [_wrong("log end", one) for one in await check_ends(connection)]
        registry = [_wrong("registry", one) for one in await check_registry(connection)]
        additions = await read_additions(connection)
    tables = [wrong("log tables", f"added to apc_log.{line}", TAKE_OUT) for line in additions.added]
    tables += [wrong("log tables", f"gone from apc_log.{line}", RESTORE) for line in additions.missing]
    return [
        *(ends or [ok("log end", "nothing stands behind the checkpoints but what the guard recorded")]),
        *(registry or [ok("registry", "every change that the gate believes is in the tree")]),
        *(
            tables
            or [ok("log tables", "constraints, defaults, triggers, rules and policies are those of this release")]
        ),
    ]


def _wrong(check: str, found: findings.LogFinding) -> Finding:
    return wrong(check, f"shard {found.shard}: {found.message}", VERIFY)

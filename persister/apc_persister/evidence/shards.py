"""Which shards a log has: also those that only a stray row names, and rows that name none."""

from apc_log.connection import AnyConnection
from apc_log.entries import KINDS
from apc_persister.evidence.verification.findings import LogFinding

_TABLES = (*KINDS.values(), "log_tiles", "log_checkpoints", "log_edges", "shards", "shard_epochs")
_FIRST = "SELECT min(shard) FROM apc_log.{table} WHERE shard IS NOT NULL"
_STRAYS = "SELECT count(*) FROM apc_log.{table} WHERE shard IS NULL"
_NEXT = "SELECT min(shard) FROM apc_log.{table} WHERE shard > $1"


async def list_shards(connection: AnyConnection) -> list[int]:
    """Return every shard that a row of the log names, one look into the primary key for each."""
    found: set[int] = set()
    for table in _TABLES:
        shard = await connection.fetchval(_FIRST.format(table=table))
        while shard is not None:
            found.add(shard)
            shard = await connection.fetchval(_NEXT.format(table=table), shard)
    return sorted(found)


async def find_strays(connection: AnyConnection) -> list[LogFinding]:
    """Return a finding for each table that has rows of no shard."""
    found = []
    for table in _TABLES:
        count = await connection.fetchval(_STRAYS.format(table=table))
        if count:
            found.append(LogFinding(None, 1, f"{count} rows of {table} are of no shard", table))
    return found

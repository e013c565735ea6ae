"""What `apc log rebuild` does and says."""

import sys

from apc_console.connections.database import open_log
from apc_console.output.terminal import echo
from apc_persister.rebuild import rebuild_projections


async def rebuild_beside_log() -> None:
    """Make the projections anew. Raises TreeBroken, and ServiceAway when the user lacks the rights."""
    async with open_log() as pool, pool.acquire() as connection:
        done = await rebuild_projections(connection)
    echo(f"{done.shards} shards: {done.rows} rows of counts made anew, {done.edges} edges of the tree mended")
    echo("session documents are in no entry and stay as they are (docs/explanation/log-security.md)", file=sys.stderr)

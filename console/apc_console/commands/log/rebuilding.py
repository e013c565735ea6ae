"""`apc log rebuild`: rebuild the projections, and print what was repaired."""

import sys
from collections.abc import Sequence
from pathlib import Path

from apc_console.connections.database import open_log
from apc_console.output.terminal import echo
from apc_contracts import load_contract
from apc_contracts.text import numbered
from apc_persister.rebuild import rebuild_projections

_MOST_NAMED = 10
"""Sessions that cannot be replayed and are listed by name."""


async def rebuild_beside_log(contracts: Sequence[Path]) -> None:
    """Rebuild the projections. Raises TreeBroken, and ServiceAway when the user lacks the rights."""
    available = [load_contract(), *map(load_contract, contracts)]
    async with open_log() as pool, pool.acquire() as connection:
        done = await rebuild_projections(connection, available)
    echo(
        f"{numbered(done.shards, 'shard')}: {numbered(done.rows, 'row')} of counts rebuilt, "
        f"{numbered(done.edges, 'edge')} of the tree mended"
    )
    echo(
        f"{numbered(done.sessions.mended, 'session')} mended, "
        f"{numbered(done.packet_ids, 'packet id')} and {numbered(done.contracts, 'contract')} added"
    )
    left = done.sessions.left
    for sentence in left[:_MOST_NAMED]:
        echo(f"as it was: {sentence}", file=sys.stderr)
    if len(left) > _MOST_NAMED:
        echo(f"as they were: {numbered(len(left) - _MOST_NAMED, 'more session')}", file=sys.stderr)

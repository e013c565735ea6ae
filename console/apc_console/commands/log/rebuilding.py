"""`apc log rebuild`: rebuild the projections, and print what was repaired."""

import sys
from collections.abc import Sequence
from pathlib import Path

from apc_console.connections.database import open_log
from apc_console.output.terminal import echo
from apc_contracts import load_contract
from apc_persister.rebuild import rebuild_projections

_MOST_NAMED = 10
"""Sessions that cannot be replayed and are listed by name."""


async def rebuild_beside_log(contracts: Sequence[Path]) -> None:
    """Rebuild the projections. Raises TreeBroken, and ServiceAway when the user lacks the rights."""
    available = [load_contract(), *map(load_contract, contracts)]
    async with open_log() as pool, pool.acquire() as connection:
        done = await rebuild_projections(connection, available)
    echo(f"{done.shards} shards: {done.rows} rows of counts rebuilt, {done.edges} edges of the tree mended")
    echo(f"{done.sessions.mended} sessions mended, {done.packet_ids} ids of packets, {done.contracts} contracts added")
    left = done.sessions.left
    for sentence in left[:_MOST_NAMED]:
        echo(f"as it was: {sentence}", file=sys.stderr)
    if len(left) > _MOST_NAMED:
        echo(f"as they were: {len(left) - _MOST_NAMED} sessions more", file=sys.stderr)

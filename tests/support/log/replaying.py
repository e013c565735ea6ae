"""Every run in a log played again: what tests call when they have made one."""

from collections.abc import Iterable

import asyncpg

from apc_contracts.contract.contract import Contract
from apc_log.queries.replay import Replayed, read_recorded, verify_run

# Not those with encrypted bodies: their verdicts cannot be recomputed.
_RUNS = """
SELECT run_id FROM apc_log.agent_packets GROUP BY run_id HAVING bool_and(stored_hash = packet_hash) ORDER BY run_id
"""


async def replay_everything(pool: asyncpg.Pool, contracts: Iterable[Contract] = ()) -> list[Replayed]:
    """Verify every run of the log. Raises AssertionError at the first that does not come out as it was recorded."""
    found = []
    async with read_recorded(pool) as records:
        for record in await records.connection.fetch(_RUNS):
            replayed = await verify_run(records, record["run_id"], contracts)
            assert replayed.problem is None, f"run {replayed.run_id}: {replayed.problem}"
            found.append(replayed)
    return found

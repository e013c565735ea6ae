"""The ledger of all protocols in the gate's memory.

It is read from the log when a shard is taken and then updated with each verdict; verdicts of other shards are read from
the log in the background.
"""

import asyncio

import asyncpg
import structlog

from apc_bus.database import DATABASE_AWAY
from apc_contracts.contract.contract import Contract
from apc_contracts.protocol.ledger import ProtocolLedger
from apc_log.protocol_evidence import HEADS, Positions, read_ledger, read_shard

_log = structlog.get_logger("apc_orchestrator")


async def load_protocols(pool: asyncpg.Pool, contract: Contract) -> tuple[ProtocolLedger, Positions]:
    """Return the ledger as the log of all shards left it."""
    ledger = ProtocolLedger(contract.effectiveness)
    return ledger, await read_ledger(pool, ledger)


class OtherShards:
    """Follows the verdicts of the other shards. A block there applies here as soon as it is read."""

    def __init__(self, pool: asyncpg.Pool, shard: int, ledger: ProtocolLedger, positions: Positions) -> None:
        self._pool = pool
        self._shard = shard
        self._ledger = ledger
        self._positions = positions

    async def follow(self, pause_seconds: float) -> None:
        """Read new verdicts repeatedly; when the database is away, try again later. Ends when cancelled."""
        while True:
            await asyncio.sleep(pause_seconds)
            try:
                await self.read()
            except DATABASE_AWAY as error:
                _log.warning("other_shards_unread", shard=self._shard, reason=str(error))

    async def read(self) -> None:
        """Read new verdicts. Raises OSError or asyncpg's errors when the database is away."""
        async with (
            self._pool.acquire() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            for head in await connection.fetch(HEADS):
                shard, last = head["shard"], head["last"]
                after = self._positions.get(shard, 0)
                if shard != self._shard and last > after:
                    await read_shard(connection, self._ledger, shard, after, last)
                    self._positions[shard] = last

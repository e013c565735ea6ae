"""Taking a shard: an epoch of one's own, given by the persister, before anything is judged (architecture.md 2)."""

import asyncio
from dataclasses import dataclass
from uuid import UUID, uuid4

import asyncpg
import structlog

from apc_bus.errors import PublishRefused, PublishUnroutable
from apc_bus.log_batch import LOG_BATCH_VERSION, EpochOpen
from apc_bus.port import Subscription
from apc_orchestrator.publications import Tenure, epoch_open

HEAD = "SELECT epoch, holder, batch_no FROM apc_log.shards WHERE shard = $1"
MARK = "SELECT mark_epoch, mark_batch_no FROM apc_log.shard_epochs WHERE shard = $1 AND holder = $2"
FIRST_PAUSE_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 0.25

_log = structlog.get_logger("apc_orchestrator")
_UNAVAILABLE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


@dataclass(frozen=True, slots=True)
class Head:
    """Where the log of a shard stands."""

    epoch: int
    holder: UUID | None
    batch_no: int


async def read_head(pool: asyncpg.Pool, shard: int) -> Head:
    """The shard's row; epoch 0 before the first holder."""
    row = await pool.fetchrow(HEAD, shard)
    return Head(0, None, 0) if row is None else Head(row["epoch"], row["holder"], row["batch_no"])


async def take_shard(inputs: Subscription, pool: asyncpg.Pool, shard: int, user: str) -> tuple[Tenure, UUID]:
    """Become the holder: everything confirmed before stands in Postgres when this returns.

    Waits as long as the persister or the database is away. The opening goes out on the channel that consumes the
    shard's inputs, so that only its active consumer can get it confirmed.
    """
    holder = uuid4()
    await _when_available(pool, shard)
    opening = epoch_open(EpochOpen(LOG_BATCH_VERSION, shard, holder), user)
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            await inputs.publish(opening)
            break
        except (PublishRefused, PublishUnroutable) as error:
            _log.warning("epoch_open_refused", shard=shard, reason=str(error))
            await asyncio.sleep(LONGEST_PAUSE_SECONDS)
    while True:
        head = await _when_available(pool, shard)
        if head.holder == holder:
            break
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    _log.info("shard_taken", shard=shard, epoch=head.epoch, holder=str(holder))
    row = await pool.fetchrow(MARK, shard, holder)
    mark = "0.0" if row is None else f"{row['mark_epoch']}.{row['mark_batch_no']}"
    return Tenure(shard, head.epoch, mark, user), holder


async def _when_available(pool: asyncpg.Pool, shard: int) -> Head:
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await read_head(pool, shard)
        except _UNAVAILABLE as error:
            _log.warning("database_awaited", shard=shard, reason=str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

"""Acquire the lease of a shard: the persister grants a new epoch before anything is judged."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import uuid4

import asyncpg
import structlog

from apc_bus.backoff import Backoff
from apc_bus.database import DATABASE_AWAY
from apc_bus.errors import PublishNotTaken, PublishRefused, PublishUnroutable
from apc_bus.port import Subscription
from apc_log.batch import LOG_BATCH_VERSION, EpochOpen
from apc_log.heads import read_given_epoch, read_head
from apc_orchestrator.errors import ShardLost
from apc_orchestrator.lease import Lease
from apc_orchestrator.publications import epoch_open

FIRST_PAUSE_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 0.25

Read = TypeVar("Read")

_log = structlog.get_logger("apc_orchestrator")


async def take_shard(inputs: Subscription, pool: asyncpg.Pool, shard: int, user: str, contract: bytes) -> Lease:
    """Become the lease holder: everything confirmed earlier is in Postgres when this returns.

    Waits as long as the persister or the database is away. The opening is published on the channel that consumes the
    shard's inputs, so that only its active consumer can get it confirmed. It carries the contract file, which the log
    keeps for replays.

    Raises:
        ShardLost: another gate has taken the shard meanwhile.
        BusError: the opening was not confirmed, or the inputs are gone.
    """
    holder = uuid4()
    await _when_available(lambda: read_head(pool, shard), shard)
    opening = epoch_open(EpochOpen(LOG_BATCH_VERSION, shard, holder, contract), user)
    while True:
        try:
            await inputs.publish(opening)
            break
        except PublishNotTaken:
            raise  # only another channel may find the leader of the log's queue
        except (PublishRefused, PublishUnroutable) as error:
            _log.warning("epoch_open_refused", shard=shard, reason=str(error))
            await asyncio.sleep(LONGEST_PAUSE_SECONDS)
    backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
    while (given := await _when_available(lambda: read_given_epoch(pool, shard, holder), shard)) is None:
        await backoff.wait()
    epoch = given.epoch
    if given.newest != epoch:
        raise ShardLost(f"epoch {epoch} was granted during the wait for the shard, and is over")
    _log.info("shard_taken", shard=shard, epoch=epoch, holder=str(holder))
    return Lease(shard, epoch, f"{given.mark_epoch}.{given.mark_batch_no}", user, holder)


async def _when_available(read: Callable[[], Awaitable[Read]], shard: int) -> Read:
    backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
    while True:
        try:
            return await read()
        except DATABASE_AWAY as error:
            _log.warning("database_awaited", shard=shard, reason=str(error))
            await backoff.wait()

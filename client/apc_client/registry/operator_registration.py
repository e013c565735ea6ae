"""Register the person in whose name the commands and the web console of a new system act."""

from datetime import timedelta

import asyncpg

from apc_bus.port import Bus
from apc_client.operator import OPERATOR, operator_person
from apc_client.registry.agents import LOG_PATIENCE, addition, publish_changes, wait_until_recorded
from apc_log.registry import read_registry


async def register_operator(
    bus: Bus, pool: asyncpg.Pool, shards: int, name: str | None, patience: timedelta | None = LOG_PATIENCE
) -> None:
    """Register this person for the broker user of the bus, unless the name was ever registered: revoked stays revoked.

    Args:
        patience: how long to wait until the log has it; None = not at all.

    Raises:
        BusError: the broker did not take the registration.
        ServiceAway: the log did not have it in time.
    """
    if (name or OPERATOR) in await read_registry(pool):
        return
    change = addition(operator_person(name or OPERATOR, bus.user))
    await publish_changes(bus, [change], shards)
    if patience is not None:
        await wait_until_recorded(pool, [change], shards, patience)

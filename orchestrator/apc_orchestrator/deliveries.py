"""Sending what a batch decided, once its log batch is confirmed; and acknowledging its inputs after that."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from apc_bus.errors import BusError, PublishRefused, PublishUnknown, PublishUnroutable
from apc_bus.port import Bus, Delivery, Subscription
from apc_orchestrator.batch import Outgoing
from apc_orchestrator.errors import ShardLost

PAUSE_SECONDS = 0.2
OVERFLOW = "overflow"
NO_ROUTE = "no_route"

_log = structlog.get_logger("apc_orchestrator")

Report = Callable[[Outgoing, str | None], None]
"""Told of each delivery that was confirmed (None) or that the broker refused (the reason)."""


async def send(bus: Bus, outgoing: Sequence[Outgoing], report: Report, stop: asyncio.Event) -> None:
    """Publish until every delivery is confirmed or refused. An unknown outcome is published again: ids make it safe.

    Raises:
        ShardLost: `stop` was set while the broker did not confirm: the inputs stay unacknowledged, and whoever takes
            the shard delivers again.
    """
    todo = list(outgoing)
    while todo:
        results = await bus.publish_all([one.publication for one in todo])
        again = []
        for one, error in zip(todo, results, strict=True):
            if error is None:
                report(one, None)
            elif isinstance(error, PublishRefused | PublishUnroutable):
                report(one, OVERFLOW if isinstance(error, PublishRefused) else NO_ROUTE)
            else:
                again.append(one)
        if again:
            _log.warning("deliveries_unconfirmed", count=len(again), reason=_why(results))
            if stop.is_set():
                raise ShardLost(f"stopped with {len(again)} deliveries unconfirmed")
            await asyncio.sleep(PAUSE_SECONDS)
        todo = again


async def acknowledge(inputs: Subscription, done: Sequence[Delivery], *, multiple: bool) -> None:
    """One multiple-ack of the inputs; single ones while earlier inputs still wait."""
    if not done:
        return
    if multiple:
        await inputs.ack(done[-1], multiple=True)
        return
    for delivery in done:
        await inputs.ack(delivery)


def _why(results: Sequence[BusError | None]) -> str:
    return next((str(error) for error in results if isinstance(error, PublishUnknown)), "unknown")

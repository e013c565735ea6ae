"""Send what a batch decided, once its log batch is confirmed; then acknowledge its inputs."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

import structlog

from apc_bus.errors import BusError, PublishNotTaken, PublishRefused, PublishUnknown, PublishUnroutable
from apc_bus.port import Bus, Delivery, Subscription
from apc_bus.topology import agent_queue, inbox_capacity
from apc_contracts.session.delivery.failures import OVERFLOW
from apc_orchestrator.batch import Outgoing
from apc_orchestrator.errors import ShardLost

PAUSE_SECONDS = 0.2
LEADER_SECONDS = 10.0
"""How long a queue may refuse everything without being full: electing a leader takes less."""
NO_ROUTE = "no_route"

_log = structlog.get_logger("apc_orchestrator")

Report = Callable[[Outgoing, str | None], None]
"""Called for each delivery that was confirmed (None) or that the broker refused (the reason)."""


async def send(bus: Bus, outgoing: Sequence[Outgoing], report: Report, stop: asyncio.Event, bound: int) -> None:
    """Publish until every delivery is confirmed or refused. Unknown outcomes are published again: ids make that safe.

    `bound`: the open deliveries that a recipient may have; its inbox is sized by it.

    Raises:
        ShardLost: `stop` was set while the broker did not confirm: the inputs stay unacknowledged, and the next lease
    holder delivers again.
    """
    todo = list(outgoing)
    began = monotonic()
    while todo:
        results = await bus.publish_all([one.publication for one in todo])
        unheard = {
            one.recipient for one, error in zip(todo, results, strict=True) if isinstance(error, PublishNotTaken)
        }
        is_late = monotonic() - began > LEADER_SECONDS
        full = unheard if is_late else await _full_inboxes(bus, unheard, bound)
        again = []
        for one, error in zip(todo, results, strict=True):
            if error is None:
                report(one, None)
            elif isinstance(error, PublishNotTaken) and one.recipient not in full:
                again.append(one)
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


async def _full_inboxes(bus: Bus, refused: set[str], bound: int) -> set[str]:
    """Return which recipients have a full inbox, of those whose queues have not been checked yet.

    Deliveries to the others are sent again.
    """
    full = set()
    for recipient in refused:
        try:
            depths = [(await bus.depth(agent_queue(recipient, urgent))).messages for urgent in (True, False)]
        except BusError:
            continue
        if max(depths) >= inbox_capacity(bound):
            full.add(recipient)
    return full


async def acknowledge(inputs: Subscription, done: Sequence[Delivery], *, multiple: bool) -> None:
    """Acknowledge the inputs at once; one by one while earlier inputs still wait."""
    if not done:
        return
    if multiple:
        await inputs.ack(done[-1], multiple=True)
        return
    for delivery in done:
        await inputs.ack(delivery)


def _why(results: Sequence[BusError | None]) -> str:
    return next((str(error) for error in results if isinstance(error, PublishUnknown | PublishNotTaken)), "unknown")

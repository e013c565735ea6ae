"""Runs a handler over a subscription: as many at a time as the prefetch allows, each acknowledged."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from apc_bus.concurrency import cancelled
from apc_bus.errors import DeadLetter, GiveBack, SubscriptionLost
from apc_bus.port import Delivery, Handler, Subscription

_log = structlog.get_logger("apc_bus")


@asynccontextmanager
async def run_handlers(queue: str, subscription: Subscription, handler: Handler) -> AsyncIterator[None]:
    """Handle what the subscription receives; leaving the context waits for the handlers in flight."""
    running: set[asyncio.Task[None]] = set()
    loop = asyncio.create_task(_loop(queue, subscription, handler, running), name=f"handle {queue}")
    try:
        yield
    finally:
        await cancelled(loop)
        await asyncio.gather(*running, return_exceptions=True)


async def _loop(queue: str, subscription: Subscription, handler: Handler, running: set[asyncio.Task[None]]) -> None:
    while True:
        try:
            batch = await subscription.receive()
        except SubscriptionLost as lost:
            _log.warning("handler_subscription_lost", queue=queue, reason=str(lost))
            return
        for delivery in batch:
            task = asyncio.create_task(_handle(queue, subscription, handler, delivery))
            running.add(task)
            task.add_done_callback(running.discard)


async def _handle(queue: str, subscription: Subscription, handler: Handler, delivery: Delivery) -> None:
    with suppress(SubscriptionLost):  # it comes again
        try:
            await handler(delivery)
        except DeadLetter:
            await subscription.nack(delivery, requeue=False)
        except GiveBack:
            pass  # unsettled: it goes back when the subscription ends
        except Exception:
            _log.exception("handler_failed", queue=queue, packet_id=delivery.message.message_id)
            await subscription.nack(delivery, requeue=True)
        else:
            await subscription.ack(delivery)

"""A subscription that loses, delays, doubles and reorders what it hands over."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random

from msgspec.structs import replace

from apc_bus.chaos.profile import Dice, Fault, FaultKind, Side
from apc_bus.errors import SubscriptionLost
from apc_bus.port import Delivery, Publication, Subscription

Note = Callable[[Fault, Side], None]


class ChaosSubscription:
    """`apc_bus.port.Subscription` around another one.

    Tags are its own, in the order of handing over: the broker's would acknowledge, with `multiple`, what was held
    back. So each delivery is acknowledged to the broker by itself.
    """

    def __init__(self, inner: Subscription, dice: Dice, note: Note) -> None:
        self._inner = inner
        self._dice = dice
        self._note = note
        self._ready: deque[Delivery] = deque()
        self._later: list[tuple[float, Delivery]] = []
        self._overtaken: list[tuple[float, Delivery]] = []
        self._handed: dict[int, Delivery | None] = {}
        """Own tag -> the broker's delivery; None for the second of two."""
        self._last_tag = 0
        self._receiving: asyncio.Task[list[Delivery]] | None = None

    @property
    def last_read(self) -> float:
        """As of the inner one."""
        return self._inner.last_read

    @property
    def longest_silence(self) -> float:
        """As of the inner one."""
        return self._inner.longest_silence

    async def receive(self, max_messages: int = 256, max_bytes: int = 1 << 20) -> list[Delivery]:
        """Return what has come and is not held back; waits for the first."""
        while not self._ready:
            await self._wait(max_messages, max_bytes)
        batch = [self._ready.popleft()]
        size = len(batch[0].message.body)
        while self._ready and len(batch) < max_messages:
            size += len(self._ready[0].message.body)
            if size > max_bytes:
                break
            batch.append(self._ready.popleft())
        return batch

    async def ack(self, delivery: Delivery, *, multiple: bool = False) -> None:
        """Acknowledge one, or with `multiple` all that were handed over up to it."""
        tags = [tag for tag in self._handed if tag < delivery.tag] if multiple else []
        for tag in (*tags, delivery.tag):
            await self._settle(tag, self._inner.ack)

    async def nack(self, delivery: Delivery, *, requeue: bool) -> None:
        """Give a delivery back; of two copies the broker hears of the first only."""
        await self._settle(delivery.tag, partial(self._inner.nack, requeue=requeue))

    async def extend(self) -> None:
        """Extend the inner one."""
        await self._inner.extend()

    async def publish(self, publication: Publication) -> None:
        """Publish through the inner subscription, without faults: only a gate publishes here."""
        await self._inner.publish(publication)

    def end(self) -> None:
        """Stop receiving; what is held back comes again to somebody else."""
        if self._receiving is not None:
            self._receiving.cancel()

    async def _settle(self, tag: int, say: Callable[[Delivery], Awaitable[None]]) -> None:
        if tag not in self._handed:
            self.end()
            raise SubscriptionLost(f"the subscription is gone: delivery {tag} was acknowledged twice")
        real = self._handed[tag]
        if real is not None:
            await say(real)
        del self._handed[tag]

    async def _wait(self, max_messages: int, max_bytes: int) -> None:
        """Wait until a delivery arrives, or one that was held back is due."""
        loop = asyncio.get_running_loop()
        if self._receiving is None:
            self._receiving = loop.create_task(self._inner.receive(max_messages, max_bytes))
        dues = [due for due, _ in (*self._later, *self._overtaken)]
        patience = max(0.0, min(dues) - loop.time()) if dues else None
        await asyncio.wait({self._receiving}, timeout=patience)
        if self._receiving.done():
            found, self._receiving = self._receiving.result(), None
            for delivery in found:
                await self._take(delivery)
        self._release(loop.time())

    def _release(self, now: float) -> None:
        for held in (self._later, self._overtaken):
            due = sorted((item for item in held if item[0] <= now), key=lambda item: item[0])
            held[:] = [item for item in held if item[0] > now]
            self._ready.extend(self._tagged(delivery, delivery) for _, delivery in due)

    async def _take(self, delivery: Delivery) -> None:
        message = delivery.message
        faults, chance = self._dice.throw(Side.DELIVERY, message.message_id, message.type)
        for fault in faults:
            self._note(fault, Side.DELIVERY)
        kinds = {fault.kind for fault in faults}
        if FaultKind.DROP in kinds:
            await self._inner.nack(delivery, requeue=True)
            return
        await asyncio.sleep(_seconds(faults, FaultKind.SLOW, chance))
        now = asyncio.get_running_loop().time()
        if FaultKind.DELAY in kinds:
            self._later.append((now + _seconds(faults, FaultKind.DELAY, chance), delivery))
        elif FaultKind.REORDER in kinds:
            self._overtaken.append((now + _seconds(faults, FaultKind.REORDER, chance), delivery))
        else:
            self._hand_over(delivery)
        if FaultKind.DUPLICATE in kinds:
            self._ready.append(self._tagged(delivery, None))

    def _hand_over(self, delivery: Delivery) -> None:
        """Hand over this delivery, and then those that waited to be overtaken."""
        self._ready.append(self._tagged(delivery, delivery))
        self._ready.extend(self._tagged(overtaken, overtaken) for _, overtaken in self._overtaken)
        self._overtaken.clear()

    def _tagged(self, delivery: Delivery, real: Delivery | None) -> Delivery:
        self._last_tag += 1
        self._handed[self._last_tag] = real
        return replace(delivery, tag=self._last_tag)


def _seconds(faults: Sequence[Fault], kind: FaultKind, chance: Random) -> float:
    return sum(chance.uniform(*fault.ms) / 1000 for fault in faults if fault.kind is kind)

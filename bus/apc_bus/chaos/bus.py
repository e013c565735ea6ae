"""A bus around another one that does to an agent's messages what a profile says."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from uuid import UUID

from msgspec.structs import replace

from apc_bus.chaos.profile import ChaosProfile, Dice, Fault, FaultKind, Side, load_profile
from apc_bus.chaos.score import Score
from apc_bus.chaos.subscription import ChaosSubscription
from apc_bus.errors import BusError, PublishUnknown
from apc_bus.last_resort import RedeliveryWatch
from apc_bus.port import Bus, Publication, QueueDepth, Subscription
from apc_bus.settings import BusSettings


class ChaosBus:
    """`apc_bus.port.Bus` for one agent, disturbed.

    What a broker promises stays true: a publish that it confirms is stored, and a delivery comes until it is
    acknowledged. So a loss is one in doubt, which the agent must repeat, and no test of an agent passes by luck.
    """

    def __init__(self, inner: Bus, profile: ChaosProfile, agent_id: str, scores: Path | None = None) -> None:
        """Wrap a bus; its score is written to the folder `scores` when it is closed."""
        self._inner = inner
        self._agent_id = agent_id
        self._scores = scores
        self._dice = Dice(profile, agent_id)
        self.score = Score()

    @property
    def user(self) -> str:
        """Return the depth of the inner bus."""
        return self._inner.user

    @property
    def scope(self) -> str | None:
        """As of the inner one."""
        return self._inner.scope

    @property
    def problems(self) -> list[str]:
        """As of the inner one: what chaos does is no problem of the bus."""
        return self._inner.problems

    async def publish(self, publication: Publication) -> None:
        """Publish one message, disturbed."""
        (error,) = await self.publish_all([publication])
        if error is not None:
            raise error

    async def publish_all(self, publications: Sequence[Publication]) -> list[BusError | None]:
        """Publish many, each disturbed by itself; one result each, in order."""
        throws = [self._throw(publication) for publication in publications]
        await asyncio.sleep(max((_delay(faults, chance) for faults, chance in throws), default=0))
        lost_before = [_is_lost(faults) and chance.random() < 0.5 for faults, chance in throws]
        sent = [one for one, is_lost in zip(publications, lost_before, strict=True) if not is_lost]
        results = iter(await self._inner.publish_all(sent) if sent else [])
        found: list[BusError | None] = []
        for publication, (faults, chance), is_lost in zip(publications, throws, lost_before, strict=True):
            result = None if is_lost else next(results)
            if result is None:
                await self._follow_up(publication, faults, chance)
            if result is None and _is_lost(faults):
                result = PublishUnknown("chaos: the message or its confirm was lost; publishing it again is safe")
            self.score.note_publish(publication.exchange, publication.message.message_id, is_confirmed=result is None)
            found.append(result)
        return found

    @asynccontextmanager
    async def subscribe(
        self, queue: str, *, prefetch: int = 1000, watch: RedeliveryWatch | None = None
    ) -> AsyncIterator[Subscription]:
        """Consume in bulk, disturbed."""
        async with self._inner.subscribe(queue, prefetch=prefetch, watch=watch) as inner:
            subscription = ChaosSubscription(inner, self._dice, self.score.note)
            try:
                yield subscription
            finally:
                subscription.end()

    def read_substrate(self, offset: int | str = "next") -> AbstractAsyncContextManager[Subscription]:
        """Read the substrate without faults: a stream takes nothing back."""
        return self._inner.read_substrate(offset)

    async def depth(self, queue: str) -> QueueDepth:
        """Return the depth of the inner bus."""
        return await self._inner.depth(queue)

    async def close(self) -> None:
        """Close the inner one, and leave the score."""
        await self._inner.close()
        if self._scores is not None:
            self.score.write(self._scores, self._agent_id)

    def _throw(self, publication: Publication) -> tuple[Sequence[Fault], Random]:
        message = publication.message
        faults, chance = self._dice.throw(Side.PUBLISH, message.message_id, message.type)
        for fault in faults:
            self.score.note(fault, Side.PUBLISH)
        return faults, chance

    async def _follow_up(self, publication: Publication, faults: Sequence[Fault], chance: Random) -> None:
        """Publish what follows a message: itself once more, or a damaged copy, whatever comes of them."""
        kinds = {fault.kind for fault in faults}
        if FaultKind.DUPLICATE in kinds:
            await self._inner.publish_all([publication])
        if FaultKind.CORRUPT in kinds:
            await self._inner.publish_all([_corrupted(publication, chance)])


def disturb(bus: Bus, agent_id: str, settings: BusSettings) -> Bus:
    """Return the bus, disturbed by the profile that the settings name, if they name one.

    Raises:
        ChaosProfileInvalid: the file holds no profile.
    """
    if settings.chaos_profile is None:
        return bus
    return ChaosBus(bus, load_profile(settings.chaos_profile), agent_id, settings.chaos_scores)


def _is_lost(faults: Sequence[Fault]) -> bool:
    return any(fault.kind is FaultKind.DROP for fault in faults)


def _delay(faults: Sequence[Fault], chance: Random) -> float:
    return sum(chance.uniform(*fault.ms) / 1000 for fault in faults if fault.kind is FaultKind.DELAY)


def _corrupted(publication: Publication, chance: Random) -> Publication:
    """Return a copy with its own id and a wound in its body that no reader of JSON can miss."""
    message = publication.message
    start = chance.randrange(len(message.body) + 1)
    body = message.body[:start] + b"\xff" + chance.randbytes(3) + message.body[start + 4 :]
    message_id = str(UUID(int=chance.getrandbits(128), version=4))
    return replace(publication, message=replace(message, body=body, message_id=message_id), followed_by=())

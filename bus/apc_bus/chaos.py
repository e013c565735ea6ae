"""The faults of `apc up --chaos`: the profile that names them, and the bus and subscription that inject them."""

import asyncio
import os
import tomllib
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Self
from uuid import UUID

import orjson
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from apc_bus.errors import BusError, ChaosProfileInvalid, PublishUnknown, SubscriptionLost
from apc_bus.folders import make_private_folder
from apc_bus.last_resort import RedeliveryWatch
from apc_bus.port import Bus, Delivery, Publication, QueueDepth, Subscription
from apc_bus.settings import BusSettings
from apc_bus.topology import INGRESS
from apc_contracts.vocabulary import PacketType

LONGEST_MS = 60_000
Milliseconds = Annotated[int, Field(ge=0, le=LONGEST_MS)]


class FaultKind(StrEnum):
    """What happens to a message.

    `drop`: its publish, or the confirm of it, is lost on the way (the sender gets PublishUnknown), or its delivery
    is (the broker hands it over again). `delay`: it comes later, others overtake it. `duplicate`: it comes twice.
    `reorder`: it waits until the next one has passed. `corrupt`: a damaged copy of it reaches the orchestrator as well.
    `slow`: the handler takes longer, and whatever waits behind it waits longer too.
    """

    DROP = "drop"
    DELAY = "delay"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    CORRUPT = "corrupt"
    SLOW = "slow"


class Side(StrEnum):
    """Where a fault strikes: on the way out of an agent, or on the way in."""

    PUBLISH = "publish"
    DELIVERY = "delivery"


_SIDES = {
    FaultKind.DROP: frozenset(Side),
    FaultKind.DELAY: frozenset(Side),
    FaultKind.DUPLICATE: frozenset(Side),
    FaultKind.REORDER: frozenset({Side.DELIVERY}),
    FaultKind.CORRUPT: frozenset({Side.PUBLISH}),
    FaultKind.SLOW: frozenset({Side.DELIVERY}),
}
_TIMED = frozenset({FaultKind.DELAY, FaultKind.REORDER, FaultKind.SLOW})


class Fault(BaseModel):
    """One `[[fault]]` of a profile."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: FaultKind
    chance: Annotated[float, Field(gt=0, le=0.9)]
    """Of each message that it concerns; 0.9 at most, so that a message gets through in the end."""
    sides: frozenset[Side] = frozenset()
    """`publish`, `delivery`; default: every side on which this kind of fault can strike."""
    agents: tuple[str, ...] = ("*",)
    """Shell patterns of agent ids."""
    types: tuple[str, ...] = ("*",)
    """Shell patterns of AMQP types: a packet type, `receipts`."""
    ms: tuple[Milliseconds, Milliseconds] = (10, 200)
    """Shortest and longest time in milliseconds of a delay, a slow handler, and of waiting for one to pass."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        impossible = self.sides - _SIDES[self.kind]
        if impossible:
            raise ValueError(f"{self.kind} does not strike at {', '.join(sorted(impossible))}: leave `sides` out")
        if self.ms[0] > self.ms[1]:
            raise ValueError("ms: write the shortest time first")
        if "ms" in self.model_fields_set and self.kind not in _TIMED:
            raise ValueError(f"ms: {self.kind} takes no time, remove it")
        return self

    def concerns(self, side: Side, agent_id: str, message_type: str) -> bool:
        """Return whether it may strike this message at all."""
        return (
            side in (self.sides or _SIDES[self.kind])
            and any(fnmatchcase(agent_id, pattern) for pattern in self.agents)
            and any(fnmatchcase(message_type, pattern) for pattern in self.types)
        )


class ChaosProfile(BaseModel):
    """A seed and its faults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = 0
    fault: tuple[Fault, ...] = ()


class Dice:
    """Which faults strike a message: by the seed, the agent, the message's id, and how often it has been seen.

    Not by the order in which messages come, so that the same messages meet the same faults in every run.
    """

    def __init__(self, profile: ChaosProfile, agent_id: str) -> None:
        self._profile = profile
        self._agent_id = agent_id
        self._seen: Counter[tuple[Side, str]] = Counter()

    def throw(self, side: Side, message_id: str, message_type: str) -> tuple[Sequence[Fault], Random]:
        """Return the faults that strike it this time, and the chance that decides how."""
        self._seen[side, message_id] += 1
        time = self._seen[side, message_id]
        chance = Random(f"{self._profile.seed}/{self._agent_id}/{side}/{message_id}/{time}")
        thrown = [(fault, chance.random()) for fault in self._profile.fault]
        return [
            fault
            for fault, number in thrown
            if number < fault.chance and fault.concerns(side, self._agent_id, message_type)
        ], chance


def load_profile(path: Path) -> ChaosProfile:
    """Return the profile in a TOML file.

    Raises:
        ChaosProfileInvalid: the file cannot be read, is no TOML, or says what no profile says; names the field.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ChaosProfileInvalid(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ChaosProfileInvalid(f"{path}: {error}") from error
    except RecursionError as error:
        raise ChaosProfileInvalid(f"{path} is no TOML: it is too deep") from error
    except ValueError as error:  # a number of thousands of digits is no TOMLDecodeError
        raise ChaosProfileInvalid(f"{path} is no TOML: {error}") from error
    try:
        return ChaosProfile.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "the profile"
        raise ChaosProfileInvalid(f"{path}: {place}: {first['msg'].removeprefix('Value error, ')}") from error


# What chaos did to one agent: the faults that struck, and the packets that the broker confirmed nevertheless.


class Score:
    """Counts for one agent; `merge` adds those of others up."""

    def __init__(self) -> None:
        self.struck: Counter[str] = Counter()
        """`kind side` -> how often."""
        self.confirmed: set[str] = set()
        """packet_id of each packet that the broker confirmed to the agent."""
        self.unknown: set[str] = set()
        """packet_id of each packet whose publish ended in doubt, and was never confirmed."""

    def note(self, fault: Fault, side: Side) -> None:
        """Count a fault."""
        self.struck[f"{fault.kind} {side}"] += 1

    def note_publish(self, publication: Publication, *, is_confirmed: bool) -> None:
        """Count how a publish of the agent ended.

        Receipts are not counted, because the log has their content, nor HEARTBEATs: it keeps those alone that end a
        silence.
        """
        message_id = publication.message.message_id
        if publication.exchange != INGRESS or publication.message.type == PacketType.HEARTBEAT:
            return
        if is_confirmed:
            self.confirmed.add(message_id)
            self.unknown.discard(message_id)
        elif message_id not in self.confirmed:
            self.unknown.add(message_id)

    def merge(self, other: "Score") -> None:
        """Add the counts of another score."""
        self.struck += other.struck
        self.confirmed |= other.confirmed
        self.unknown = (self.unknown | other.unknown) - self.confirmed

    def write(self, folder: Path, name: str) -> None:
        """Write it for `apc up`, which adds up the scores of all processes."""
        make_private_folder(folder)
        document = {
            "struck": self.struck,
            "confirmed": sorted(self.confirmed),
            "unknown": sorted(self.unknown),
        }
        (folder / f"{name}-{os.getpid()}.json").write_bytes(orjson.dumps(document))

    @classmethod
    def read(cls, folder: Path) -> "Score":
        """Return the sum of the scores that the processes wrote there."""
        total = cls()
        for path in sorted(folder.glob("*.json")):
            document = orjson.loads(path.read_bytes())
            score = cls()
            score.struck.update(document["struck"])
            score.confirmed, score.unknown = set(document["confirmed"]), set(document["unknown"])
            total.merge(score)
        return total


# A subscription that loses, delays, doubles and reorders what it hands over.

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
        """That of the inner one."""
        return self._inner.last_read

    @property
    def longest_silence(self) -> float:
        """That of the inner one."""
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
        """Publish through the inner subscription, without faults: only an orchestrator publishes here."""
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
            deliveries, self._receiving = self._receiving.result(), None
            for delivery in deliveries:
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


# A bus around another one that does to an agent's messages what a profile says.


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
        """The broker user of the inner bus."""
        return self._inner.user

    @property
    def scope(self) -> str | None:
        """That of the inner one."""
        return self._inner.scope

    @property
    def problems(self) -> list[str]:
        """Those of the inner bus: what chaos does is no problem of the bus."""
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
        outcomes = iter(await self._inner.publish_all(sent) if sent else [])
        results: list[BusError | None] = []
        for publication, (faults, chance), is_lost in zip(publications, throws, lost_before, strict=True):
            result = None if is_lost else next(outcomes)
            if result is None:
                await self._follow_up(publication, faults, chance)
            if result is None and _is_lost(faults):
                result = PublishUnknown("chaos: the message or its confirm was lost; publishing it again is safe")
            self.score.note_publish(publication, is_confirmed=result is None)
            results.append(result)
        return results

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

    def read_substrate(
        self, offset: int | str = "next", *, since: float | None = None
    ) -> AbstractAsyncContextManager[Subscription]:
        """Read the substrate without faults: a stream takes nothing back."""
        return self._inner.read_substrate(offset, since=since)

    async def depth(self, queue: str) -> QueueDepth:
        """Return the depth of the inner bus."""
        return await self._inner.depth(queue)

    async def consumers(self, queues: Sequence[str]) -> dict[str, int | None]:
        """Return the consumers of the inner bus."""
        return await self._inner.consumers(queues)

    async def close(self) -> None:
        """Close the inner bus, and write the score."""
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
    """Return a copy with a new id and bytes in its body that no reader of JSON accepts."""
    message = publication.message
    start = chance.randrange(len(message.body) + 1)
    body = message.body[:start] + b"\xff" + chance.randbytes(3) + message.body[start + 4 :]
    message_id = str(UUID(int=chance.getrandbits(128), version=4))
    return replace(publication, message=replace(message, body=body, message_id=message_id), followed_by=())

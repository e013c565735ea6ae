"""Confirmed publishing over a separate connection, on one channel that is opened again when it closes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aiormq.exceptions import AMQPError

from apc_bus.concurrency import boottime, unasked_cancel_fails
from apc_bus.crash_points import crash_point
from apc_bus.errors import BusError, BusUnavailable, PublishRefused, PublishUnknown
from apc_bus.port import Publication
from apc_bus.rabbit.bundles import bundled
from apc_bus.rabbit.connections import BulkChannel, SharedLink, Timing, Window
from apc_bus.telemetry import get_logger
from apc_bus.topology import INGRESS
from apc_contracts.identity.ids import SLOTS

PublishAll = Callable[[Sequence[Publication]], Awaitable[list[BusError | None]]]
_Waiting = list[tuple[Publication, asyncio.Future[BusError | None]]]


class Gathering:
    """Publishes that began in the same turn go out together. None of them waits longer than that turn."""

    def __init__(self, publish_all: PublishAll) -> None:
        self._publish_all = publish_all
        self._waiting: _Waiting = []
        self._sending: set[asyncio.Task[None]] = set()

    async def publish(self, publication: Publication) -> BusError | None:
        """Publish one message; return its result, None = confirmed."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._begin)
        result: asyncio.Future[BusError | None] = loop.create_future()
        self._waiting.append((publication, result))
        return await result

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        # Who was cancelled meanwhile must not be sent.
        waiting = [one for one in waiting if not one[1].done()]
        if waiting:
            task = asyncio.ensure_future(self._send(waiting))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, waiting: _Waiting) -> None:
        try:
            results = await self._publish_all([publication for publication, _ in waiting])
        except Exception as error:
            if len(waiting) == 1:
                _tell(waiting[0][1], error)
                return
            # One of them cannot be written at all; each by itself tells which.
            for one in waiting:
                await self._send([one])
        except BaseException:
            # Not cancelled: those who wait would take it for their own cancellation.
            for _, result in waiting:
                _tell(result, PublishUnknown("sending it was cut off: it may be stored; publishing it again is safe"))
            raise
        else:
            for (_, result), answer in zip(waiting, results, strict=True):
                if not result.done():
                    result.set_result(answer)


def _tell(result: "asyncio.Future[BusError | None]", error: Exception) -> None:
    if not result.done():
        result.set_exception(error)


_log = get_logger("apc_bus")


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A publish that was given up without an answer; CLOCK_BOOTTIME in seconds."""

    sent_at: float
    given_up_at: float


class Publisher:
    """Publishes and tells what became of each message."""

    def __init__(self, link: SharedLink, timing: Timing, publish_window: int, shards: int = SLOTS) -> None:
        """Prepare; `shards` as in `bundled`."""
        self._link = link
        self._shards = shards
        self._timing = timing
        self._publish_window = publish_window
        self._channel: BulkChannel | None = None
        self._single: BulkChannel | None = None
        self._replaced: list[BulkChannel] = []
        self._opening = asyncio.Lock()
        self._one_by_one = asyncio.Lock()
        self._unknown: _Unknown | None = None
        self._gathering = Gathering(self.publish_all)

    @property
    def oldest_sent_at(self) -> float | None:
        """CLOCK_BOOTTIME, in seconds, of the oldest publish that nobody knows the outcome of; None: there is none.

        One that was given up counts until the broker answers for a later one: its caller, who publishes it again, would
        else make it young each time.
        """
        channels = [channel for channel in (self._channel, self._single, *self._replaced) if channel is not None]
        moments = [channel.oldest_sent_at for channel in channels]
        unknown = self._unknown
        if unknown is not None and all(channel.answered_at <= unknown.given_up_at for channel in channels):
            moments.append(unknown.sent_at)
        return min((moment for moment in moments if moment is not None), default=None)

    async def publish(self, publication: Publication) -> BusError | None:
        """Publish one message; return its result: None = confirmed."""
        if publication.exchange == INGRESS or publication.followed_by:
            return await self._gathering.publish(publication)
        (result,) = await self._publish_each([publication])
        return result

    async def publish_all(self, publications: Sequence[Publication]) -> list[BusError | None]:
        """Publish all, packets for one shard in bundles; return one result each, in order: None = confirmed."""
        sendings = bundled(publications, self._shards)
        answers = await self._publish_each([sending.publication for sending in sendings])
        results: list[BusError | None] = [None] * len(publications)
        for sending, answer in zip(sendings, answers, strict=True):
            for position in sending.positions:
                results[position] = answer
        return results

    async def _publish_each(self, publications: Sequence[Publication]) -> list[BusError | None]:
        """Publish each in a separate message."""
        if not publications:
            return []
        try:
            async with self._opening:
                self._channel = await self._reopened(self._channel)
                channel = self._channel
        except BusUnavailable as error:
            return [error] * len(publications)
        window = await channel.publish_window(publications, self._timing.answer)
        crash_point("publisher.after_confirm")
        if unanswered := window.unanswered:
            await self._settle(channel, window, unanswered)
        return [window.results[index] for index in range(len(publications))]

    async def _settle(self, channel: BulkChannel, window: Window, unanswered: list[int]) -> None:
        """Set the result of publishes without an answer.

        One bad publish closes the channel under all that are in flight. Alone in flight it is the culprit;
        else each is published again alone, which is always safe and tells them apart.
        """
        if channel.refusal is None:
            await self._give_up(channel, window, unanswered)
            return
        self._unknown = None
        culprit = channel.culprit(window)
        for index in unanswered:
            if index == culprit:
                window.settle(index, PublishRefused(_reason(channel)))
            else:
                window.settle(index, await self._publish_alone(window.publications[index]))

    async def _give_up(self, channel: BulkChannel, window: Window, unanswered: list[int]) -> None:
        is_lost = channel.is_closed
        self._note_unknown(window)
        reason = "the connection was lost" if is_lost else f"no confirm in {self._timing.answer:g} s"
        for index in unanswered:
            window.settle(index, PublishUnknown(f"{reason}: the message may be stored; publishing it again is safe"))
        if is_lost:
            return
        blocked = self._link.blocked
        _log.warning("publish_unconfirmed", messages=len(unanswered), blocked=blocked)
        if blocked is None:
            await self._link.drop()
        # Else another connection would be blocked as well (alarms are the cluster's), and would not hear of the end.

    def _note_unknown(self, window: Window) -> None:
        before = self.oldest_sent_at
        sent_at = window.began_at if before is None else min(before, window.began_at)
        self._unknown = _Unknown(sent_at, boottime())

    async def _publish_alone(self, publication: Publication) -> BusError | None:
        async with self._one_by_one:
            try:
                self._single = channel = await self._reopened(self._single)
            except BusUnavailable as error:
                return error
            window = await channel.publish_window([publication], self._timing.answer)
            if window.unanswered:
                if channel.refusal is not None:
                    self._unknown = None
                    return PublishRefused(_reason(channel))
                await self._give_up(channel, window, [0])
            return window.results[0]

    async def _reopened(self, channel: BulkChannel | None) -> BulkChannel:
        if channel is not None and not channel.is_closed:
            if not channel.should_be_replaced:
                return channel
            self._replaced.append(channel)
        await self._close_replaced()
        # A node that accepts connections and then does not answer: the next one may.
        for _ in range(2):
            link = await self._link.get()
            try:
                return await link.bulk_channel(self._timing.answer, publish_window=self._publish_window)
            except (AMQPError, OSError, RuntimeError, TimeoutError) as error:
                _log.warning("channel_open_failed", reason=repr(error))
                await self._link.drop()
        raise BusUnavailable("the broker accepts the connection but opens no channel")

    async def _close_replaced(self) -> None:
        """Close the channels that were replaced, each once what it had in flight is answered."""
        idle = [channel for channel in self._replaced if channel.is_closed or channel.is_idle]
        self._replaced = [channel for channel in self._replaced if channel not in idle]
        for channel in idle:
            try:
                with unasked_cancel_fails():
                    await channel.close(timeout=self._timing.answer)
            except (AMQPError, OSError, RuntimeError, TimeoutError) as error:
                _log.info("channel_close_failed", reason=repr(error))


def _reason(channel: BulkChannel) -> str:
    return f"the broker refuses the publish: {channel.refusal}"

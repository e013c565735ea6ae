"""Confirmed publishing over a connection of its own, on one channel that is opened again when it closes."""

import asyncio
from collections.abc import Sequence

import structlog
from aiormq.exceptions import AMQPError

from apc_bus.errors import BusError, BusUnavailable, PublishRefused, PublishUnknown
from apc_bus.port import Publication
from apc_bus.rabbit.channel import BulkChannel, Window, open_channel
from apc_bus.rabbit.connections import SharedLink, Timing

_log = structlog.get_logger("apc_bus")


class Publisher:
    """Publishes and tells what became of each message."""

    def __init__(self, link: SharedLink, timing: Timing, publish_window: int) -> None:
        self._link = link
        self._timing = timing
        self._publish_window = publish_window
        self._channel: BulkChannel | None = None
        self._single: BulkChannel | None = None
        self._replaced: list[BulkChannel] = []
        self._opening = asyncio.Lock()
        self._one_by_one = asyncio.Lock()

    @property
    def oldest_unconfirmed(self) -> float:
        """Age in seconds of the oldest publish without a confirm; 0 when there is none."""
        return self._channel.oldest_unconfirmed if self._channel is not None else 0.0

    async def publish_all(self, publications: Sequence[Publication]) -> list[BusError | None]:
        """One result each, in order: None = confirmed."""
        if not publications:
            return []
        try:
            async with self._opening:
                self._channel = await self._reopened(self._channel)
                channel = self._channel
        except BusUnavailable as error:
            return [error] * len(publications)
        window = await channel.publish_window(publications, self._timing.answer)
        if unanswered := window.unanswered:
            await self._settle(channel, window, unanswered)
        return [window.results[index] for index in range(len(publications))]

    async def _settle(self, channel: BulkChannel, window: Window, unanswered: list[int]) -> None:
        """Give those without an answer a result.

        One bad publish closes the channel under all that are in flight. Alone in flight it is the culprit;
        else each is published again alone, which is always safe and tells them apart.
        """
        if channel.refusal is None:
            await self._give_up(channel, window, unanswered)
            return
        culprit = channel.culprit(window)
        for index in unanswered:
            if index == culprit:
                window.settle(index, PublishRefused(_reason(channel)))
            else:
                window.settle(index, await self._publish_alone(window.publications[index]))

    async def _give_up(self, channel: BulkChannel, window: Window, unanswered: list[int]) -> None:
        is_lost = channel.is_closed
        reason = "the connection was lost" if is_lost else f"no confirm in {self._timing.answer:g} s"
        for index in unanswered:
            window.settle(index, PublishUnknown(f"{reason}: the message may be stored; publishing it again is safe"))
        if not is_lost:
            _log.warning("publish_unconfirmed", messages=len(unanswered))
            await self._link.drop()

    async def _publish_alone(self, publication: Publication) -> BusError | None:
        async with self._one_by_one:
            try:
                self._single = channel = await self._reopened(self._single)
            except BusUnavailable as error:
                return error
            window = await channel.publish_window([publication], self._timing.answer)
            if window.unanswered:
                if channel.refusal is not None:
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
                return await open_channel(link, self._timing.answer, publish_window=self._publish_window)
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
                await channel.close(timeout=self._timing.answer)
            except (AMQPError, OSError, RuntimeError, TimeoutError) as error:
                _log.info("channel_close_failed", reason=repr(error))


def _reason(channel: BulkChannel) -> str:
    return f"the broker refuses the publish: {channel.refusal}"

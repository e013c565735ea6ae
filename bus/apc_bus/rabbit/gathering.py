"""Gather the publishes of one turn of the event loop, so that they can share a bundle."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from apc_bus.errors import BusError, PublishUnknown
from apc_bus.port import Publication

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

"""Back-off: the pauses between failed attempts grow, with jitter."""

import asyncio
import random


class Backoff:
    """Pauses that double up to `longest` seconds, each shortened by up to half.

    The jitter keeps those who wait for the same server from returning at the same moment.

    Args:
        first: seconds; the first pause before its jitter.
        stop: ends a pause at once when it is set.
    """

    def __init__(self, first: float, longest: float, stop: asyncio.Event | None = None) -> None:
        self._first = first
        self._longest = longest
        self._stop = stop
        self.reset()

    def reset(self) -> None:
        """Begin with the first pause again: an attempt has succeeded."""
        self._full = min(self._first, self._longest)
        self.pause = self._full * random.uniform(0.5, 1.0)
        """Seconds of the coming pause."""

    def take(self) -> float:
        """Return the seconds of the coming pause; the one after it is longer."""
        pause = self.pause
        self._full = min(2 * self._full, self._longest)
        self.pause = self._full * random.uniform(0.5, 1.0)
        return pause

    async def wait(self) -> None:
        """Wait for the coming pause, or until told to stop."""
        pause = self.take()
        if self._stop is None:
            await asyncio.sleep(pause)
            return
        try:
            async with asyncio.timeout(pause):
                await self._stop.wait()
        except TimeoutError:
            pass

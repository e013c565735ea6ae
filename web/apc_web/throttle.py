"""Slows down who tries passwords, by name and source: what one source tries keeps nobody elsewhere out."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from apc_web.errors import ApiError

FREE_FAILURES = 5
"""Wrong passwords of a name from one source, before each further attempt has to wait."""
FREE_FAILURES_OF_A_SOURCE = 20
"""The same of one source, at whatever names."""
LONGEST_PAUSE = 3.0
"""Seconds: 0.5 s first, doubling; short of the time after which clients give up."""
FORGET_SECONDS = 900.0
_MOST_WAITING = 4
"""Attempts at a name from one source that wait at the same time."""
_MOST_WAITING_OF_A_SOURCE = 16
_MOST_KEPT = 10_000
_HASHED_AT_A_TIME = 2
"""Each costs 64 MiB for some 50 ms."""
_IPV6_NETWORK = 64
"""Bits of an address that say whose network it is: anybody has all addresses of one."""

Place = tuple[str | None, str]
"""A name and a source; without a name, the source at whatever names."""


@dataclass(slots=True)
class _Failures:
    count: int
    last: float


class LoginThrottle:
    """Lets each attempt wait for what was wrong before it, and then be judged: the right password always passes.

    Args:
        clock: seconds that only grow.
        pause: waits for so many seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._failures: dict[Place, _Failures] = {}
        self._waiting = Counter[Place]()
        self._turns: dict[str, asyncio.Lock] = {}
        self._hashing = asyncio.Semaphore(_HASHED_AT_A_TIME)

    @asynccontextmanager
    async def attempt(self, name: str, source: str) -> AsyncIterator[None]:
        """Wait, then hold the right to hash one password; one of each source at a time.

        Raises:
            ApiError: too many of them wait already (429).
        """
        places: tuple[Place, ...] = ((name, source), (None, source))
        bounds = (_MOST_WAITING, _MOST_WAITING_OF_A_SOURCE)
        if any(self._waiting[place] >= bound for place, bound in zip(places, bounds, strict=True)):
            raise ApiError(429, "TOO_MANY", "too many logins from here at the same time: try again in a moment")
        self._waiting.update(places)
        try:
            await self._pause(self.delay(name, source))
            async with self._turns.setdefault(source, asyncio.Lock()), self._hashing:
                yield
        finally:
            self._waiting.subtract(places)
            self._waiting = +self._waiting
            if (None, source) not in self._waiting:
                self._turns.pop(source, None)

    def delay(self, name: str, source: str) -> float:
        """Return the seconds that an attempt waits now."""
        places = (((name, source), FREE_FAILURES), ((None, source), FREE_FAILURES_OF_A_SOURCE))
        extra = max(self._count(place) - free for place, free in places)
        return 0.0 if extra < 0 else min(0.5 * 2.0 ** min(extra, 10), LONGEST_PAUSE)

    def note(self, name: str, source: str, *, is_right: bool) -> None:
        """Count a wrong password; forget those of a name that was right."""
        if is_right:
            self._failures.pop((name, source), None)
            return
        for place in ((name, source), (None, source)):
            count = self._count(place) + 1
            self._failures.pop(place, None)
            if len(self._failures) >= _MOST_KEPT:
                # Of those with the fewest failures the oldest: what is under attack stays, however many names come.
                self._failures.pop(min(self._failures, key=self._count))
            self._failures[place] = _Failures(count, self._clock())

    def _count(self, place: Place) -> int:
        failures = self._failures.get(place)
        return 0 if failures is None or self._clock() - failures.last > FORGET_SECONDS else failures.count


def source_of(address: str) -> str:
    """Return whose address it is: an IPv6 address stands for its network."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if isinstance(parsed, IPv6Address):
        bits = parsed.max_prefixlen - _IPV6_NETWORK
        return str(IPv6Address(int(parsed) >> bits << bits))
    return str(parsed)

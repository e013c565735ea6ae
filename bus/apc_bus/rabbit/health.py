"""What a bus knows of its own health: whether publishes are answered, and whether what should consume does.

A queue that was asked for is expected to have a consumer until its owner leaves it in good order: one that ended by an
error is missing until its owner has it back. Everything here may be read from any thread (/readyz, /metrics).
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

LONGEST_UNCONFIRMED_SECONDS = 3.0
"""Beyond this age of the oldest publish without an answer a process is not ready (quality.md section 2)."""
STARVED_AFTER_LOOKS = 3
"""So often in a row the broker must not know a consumer of ours: while it elects a leader it knows none."""


class Consumes(Protocol):
    """A consumer, as its own side sees it."""

    @property
    def is_live(self) -> bool:
        """It has a channel, and the broker has not told of its end."""
        ...

    def end(self, reason: str) -> None:
        """Give it up; whoever owns it starts it again."""
        ...


class Expected:
    """A queue that should have a consumer of ours."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.consumer: Consumes | None = None
        """None while it is missing."""
        self.lag: int | None = None
        """Messages that wait in the queue, when the broker was asked last; None = it did not say."""
        self._unknown_to_broker = 0

    @property
    def is_live(self) -> bool:
        """Whether it is consumed, as far as this side knows."""
        return self.consumer is not None and self.consumer.is_live

    def compare(self, messages: int, consumers: int) -> bool:
        """Take what the broker says of the queue. True: it knows no consumer, so ours starved and was given up.

        Measured with 3.10: a queue that is deleted and made again within a moment never tells its consumer.
        """
        self.lag = messages
        consumer = self.consumer
        if consumers or consumer is None or not consumer.is_live:
            self._unknown_to_broker = 0
            return False
        self._unknown_to_broker += 1
        if self._unknown_to_broker < STARVED_AFTER_LOOKS:
            return False
        self._unknown_to_broker = 0
        consumer.end(f"the broker knows no consumer of {self.queue}")
        return True


class ExpectedConsumers:
    """The queues that a bus should consume."""

    def __init__(self) -> None:
        self._all: list[Expected] = []

    def __iter__(self) -> Iterator[Expected]:
        return iter(tuple(self._all))

    @contextmanager
    def expect(self, queue: str) -> Iterator[Expected]:
        """From now on this queue should be consumed; left by an error, it still should."""
        expected = next((one for one in self._all if one.queue == queue and one.consumer is None), None)
        if expected is None:
            expected = Expected(queue)
            self._all.append(expected)
        try:
            yield expected
        except Exception:
            expected.consumer = None
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self._all.remove(expected)
            raise
        else:
            self._all.remove(expected)


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """One queue that should be consumed; `lag` as in `Expected`."""

    queue: str
    is_live: bool
    lag: int | None


@dataclass(frozen=True, slots=True)
class BusHealth:
    """How a bus is now."""

    is_connected: bool
    """There is a connection to publish on."""
    blocked: str | None
    """Why the broker takes no publishes from us (an alarm); None = it does."""
    oldest_unconfirmed: float
    """Age in seconds of the oldest publish without an answer; 0 when there is none."""
    consumers: tuple[ConsumerHealth, ...]

    @property
    def problems(self) -> list[str]:
        """What stands against being ready, a sentence each; empty = ready."""
        found = []
        if not self.is_connected:
            found.append("no broker node can be reached")
        if self.blocked is not None:
            found.append(f"the broker blocks publishers: {self.blocked}")
        if self.oldest_unconfirmed > LONGEST_UNCONFIRMED_SECONDS:
            found.append(f"a publish waits for its confirm since {self.oldest_unconfirmed:.1f} s")
        return found + [f"queue {one.queue} has no live consumer" for one in self.consumers if not one.is_live]

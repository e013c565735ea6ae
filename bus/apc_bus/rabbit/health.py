"""What a bus knows of its health: whether publishes are answered, and whether what should consume does.

A queue that was asked for is expected to have a consumer until its owner leaves it in good order: one that ended by an
error is missing until its owner has it back. Everything here may be read from any thread (/readyz, /metrics).
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import nlargest
from typing import Protocol
from weakref import WeakSet

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from apc_bus.telemetry import OTHERS

LONGEST_UNCONFIRMED_SECONDS = 3.0
"""Beyond this age of the oldest publish without an answer a process is not ready.

Source: docs/specification/architecture.md section 9.
"""
STARVED_AFTER_LOOKS = 3
"""So often in a row the broker must not know a consumer of ours, or pass it over: amid an election it knows none."""
PASSED_OVER_AFTER_LOOKS = 12
"""So often in a row where a consumer has had nothing yet: it may stand by for another, which has the messages."""

SHOWN_QUEUES = 100
"""Queues whose lag is shown, those with the most messages; the others are one sample."""


class Consumes(Protocol):
    """A consumer, as its own side sees it."""

    @property
    def is_live(self) -> bool:
        """It has a channel, and the broker has not told of its end."""
        ...

    @property
    def received(self) -> int:
        """Deliveries since it was made or repaired."""
        ...

    @property
    def is_idle(self) -> bool:
        """It has no delivery in progress: the broker may give it as many as it takes at once."""
        ...

    def end(self, reason: str) -> None:
        """End the consumer; its owner starts it again."""
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
        self._passed_over = 0
        self._received = 0

    @property
    def is_live(self) -> bool:
        """Whether it is consumed, as far as this side knows."""
        return self.consumer is not None and self.consumer.is_live

    def compare(self, messages: int, consumers: int) -> bool:
        """Compare with the broker's figures; return whether our consumer starved and was given up.

        It starves when the broker knows no consumer, or when messages wait and ours, which is idle, gets none.
        Measured with 3.10: a queue that is deleted and made again within some 20 ms never tells its consumer. The
        broker counts it as one of the new queue, hands it messages until its prefetch is full, and delivers none of
        them; they are free again when it is gone.
        """
        self.lag = messages
        consumer = self.consumer
        if consumer is None or not consumer.is_live:
            self._unknown_to_broker = self._passed_over = 0
            return False
        is_passed_over = messages > 0 and consumer.is_idle and consumer.received == self._received
        self._received = consumer.received
        self._passed_over = self._passed_over + 1 if is_passed_over else 0
        self._unknown_to_broker = 0 if consumers else self._unknown_to_broker + 1
        if self._unknown_to_broker >= STARVED_AFTER_LOOKS:
            reason = f"the broker knows no consumer of {self.queue}"
        elif self._passed_over >= (STARVED_AFTER_LOOKS if consumer.received else PASSED_OVER_AFTER_LOOKS):
            reason = f"{messages} messages wait in {self.queue}, and this consumer gets none"
        else:
            return False
        self._unknown_to_broker = self._passed_over = 0
        consumer.end(reason)
        return True


class ExpectedConsumers:
    """The queues that a bus should consume."""

    def __init__(self) -> None:
        self._all: list[Expected] = []

    def __iter__(self) -> Iterator[Expected]:
        return iter(tuple(self._all))

    @contextmanager
    def expect(self, queue: str) -> Iterator[Expected]:
        """Expect this queue to be consumed from now on, also after the block is left by an error."""
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
    """The health of a bus at this moment."""

    is_connected: bool
    """There is a connection to publish on."""
    blocked: str | None
    """Why the broker takes no publishes from us (an alarm); None = it does."""
    oldest_unconfirmed: float
    """Age in seconds of the oldest publish without an answer; 0 when there is none."""
    consumers: tuple[ConsumerHealth, ...]

    @property
    def problems(self) -> list[str]:
        """Why the bus is not ready, a sentence each; empty = ready."""
        reasons = []
        if not self.is_connected:
            reasons.append("no broker node can be reached")
        if self.blocked is not None:
            reasons.append(f"the broker blocks publishers: {self.blocked}")
        if self.oldest_unconfirmed > LONGEST_UNCONFIRMED_SECONDS:
            reasons.append(f"a publish waits for its confirm since {self.oldest_unconfirmed:.1f} s")
        return reasons + [f"queue {one.queue} has no live consumer" for one in self.consumers if not one.is_live]


# The gauges of the buses of a process, read when somebody asks for /metrics (docs/how-to/operations.md).


class Healthy(Protocol):
    """A bus that tells its health."""

    @property
    def health(self) -> BusHealth: ...


class _Buses(Collector):
    def __init__(self) -> None:
        self.open: WeakSet[Healthy] = WeakSet()

    def collect(self) -> Iterator[Metric]:
        states = [bus.health for bus in list(self.open)]
        consumers = [consumer for health in states for consumer in health.consumers]
        yield GaugeMetricFamily(
            "apc_bus_oldest_unconfirmed_seconds",
            "Age of the oldest publish that the broker has not answered; 0 when there is none.",
            max((health.oldest_unconfirmed for health in states), default=0.0),
        )
        yield GaugeMetricFamily(
            "apc_bus_blocked",
            "1 = the broker takes no publishes from this process (memory or disk alarm).",
            int(any(health.blocked is not None for health in states)),
        )
        yield GaugeMetricFamily(
            "apc_bus_consumers_expected", "Queues that this process should consume.", len(consumers)
        )
        yield GaugeMetricFamily(
            "apc_bus_consumers_live", "Queues that it does consume.", sum(consumer.is_live for consumer in consumers)
        )
        lag = GaugeMetricFamily(
            "apc_bus_consumer_lag", "Messages that wait in a queue that this process consumes.", labels=["queue"]
        )
        waiting = {one.queue: one.lag for one in consumers if one.lag is not None}
        for queue in nlargest(SHOWN_QUEUES, waiting, key=lambda queue: waiting[queue]):
            lag.add_metric([queue], waiting.pop(queue))
        if waiting:
            lag.add_metric([OTHERS], sum(waiting.values()))
        yield lag


_buses = _Buses()
REGISTRY.register(_buses)


def follow_bus(bus: Healthy) -> None:
    """Include a bus in the metrics until `forget_bus`, or as long as it lives."""
    _buses.open.add(bus)


def forget_bus(bus: Healthy) -> None:
    """Leave a bus out of the metrics: its connection is closed."""
    _buses.open.discard(bus)

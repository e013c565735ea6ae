"""The gauges of the buses of a process, read when somebody asks for /metrics (docs/how-to/operations.md)."""

from collections.abc import Iterator
from typing import Protocol
from weakref import WeakSet

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from apc_bus.rabbit.health import BusHealth


class Healthy(Protocol):
    """A bus."""

    @property
    def health(self) -> BusHealth: ...


class _Buses(Collector):
    def __init__(self) -> None:
        self.open: WeakSet[Healthy] = WeakSet()

    def collect(self) -> Iterator[Metric]:
        found = [bus.health for bus in list(self.open)]
        consumers = [consumer for health in found for consumer in health.consumers]
        yield GaugeMetricFamily(
            "apc_bus_oldest_unconfirmed_seconds",
            "Age of the oldest publish that the broker has not answered; 0 when there is none.",
            max((health.oldest_unconfirmed for health in found), default=0.0),
        )
        yield GaugeMetricFamily(
            "apc_bus_blocked",
            "1 = the broker takes no publishes from this process (memory or disk alarm).",
            int(any(health.blocked is not None for health in found)),
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
        for consumer in consumers:
            if consumer.lag is not None:
                lag.add_metric([consumer.queue], consumer.lag)
        yield lag


_buses = _Buses()
REGISTRY.register(_buses)


def follow_bus(bus: Healthy) -> None:
    """Show a bus until `forget_bus`, or as long as it lives."""
    _buses.open.add(bus)


def forget_bus(bus: Healthy) -> None:
    """Record that the connection is closed."""
    _buses.open.discard(bus)

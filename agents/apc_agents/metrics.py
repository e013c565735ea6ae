"""What a worker tells /metrics (docs/how-to/observability.md).

Kept as plain numbers and made into metrics when somebody asks: prometheus_client's own counters and histograms and
the ids of log lines took 18 of the 102 µs of CPU that a worker spent on a packet (docs/explanation/performance.md).
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from time import perf_counter

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from apc_agents.errors import EmitError, EmitRefused, EmitRejected, EmitTimeout, EmitUnconfirmed
from apc_bus.telemetry import agent_labels
from apc_contracts.vocabulary import PacketType
from apc_contracts.wire.receipts import ReceiptKind

FAILED = "failed"
"""Label `end` of a packet whose handler raised: it becomes a dead letter."""
BOUNDS = (1e-3, 5e-3, 10e-3, 25e-3, 0.1, 0.5, 2.5, 10, 60, 600)
"""Upper ends of the buckets of handler times, in seconds."""
ENDS = frozenset({ReceiptKind.OUTCOME, ReceiptKind.REJECT, ReceiptKind.RETRY, ReceiptKind.EXPIRED})
"""The receipts that say how a packet ended."""

_RESULTS: dict[type[EmitError], str] = {
    EmitRefused: "refused",
    EmitUnconfirmed: "unconfirmed",
    EmitRejected: "rejected",
    EmitTimeout: "timeout",
}
_Labels = tuple[str, ...]
SERIES = len(BOUNDS) + 3 + len(ENDS) + 1 + len(_RESULTS) + 1
"""Of one agent and packet type: a histogram with its sum and count, how packets ended, what came of emissions."""


@dataclass(slots=True)
class _Times:
    """Seconds, counted by bucket; the last one has no end."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0


class _WorkerFigures(Collector):
    """The figures of all workers of this process."""

    def __init__(self) -> None:
        self.handlers: defaultdict[_Labels, _Times] = defaultdict(_Times)
        self.packets: defaultdict[_Labels, int] = defaultdict(int)
        self.emits: defaultdict[_Labels, int] = defaultdict(int)

    def collect(self) -> Iterator[Metric]:
        times = HistogramMetricFamily(
            "apc_worker_handler_seconds",
            "Time of one run of a handler, with its emissions and the saving of its state.",
            labels=("agent", "type"),
        )
        # Copies: the loop goes on counting while another thread asks.
        for labels, counted in list(self.handlers.items()):
            ends = [*map(str, map(float, BOUNDS)), "+Inf"]
            buckets = list(zip(ends, accumulate(counted.buckets), strict=True))
            times.add_metric(labels, buckets, counted.seconds)
        yield times
        yield _counter(
            "apc_worker_packets",
            "Packets that came to an end in this worker: outcome, reject, retry, expired, failed.",
            ("agent", "type", "end"),
            self.packets,
        )
        yield _counter(
            "apc_worker_emits",
            "Packets emitted: confirmed, refused (here or by the gate), unconfirmed, rejected or timeout (no ACK).",
            ("agent", "type", "result"),
            self.emits,
        )


def _counter(name: str, documentation: str, labels: _Labels, counts: dict[_Labels, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, documentation, labels=labels)
    for values, count in list(counts.items()):
        family.add_metric(values, count)
    return family


_figures = _WorkerFigures()
REGISTRY.register(_figures)


def _label(agent_id: str, kind: str) -> str:
    """Return the label of all figures of an agent and packet type: a share of one by the other stays right."""
    return agent_labels.of(agent_id, kind, SERIES)


def time_handler(agent_id: str, kind: PacketType, began: float) -> None:
    """Record that a run of a handler ends now; `began` is a time of perf_counter in seconds."""
    seconds = perf_counter() - began
    times = _figures.handlers[_label(agent_id, kind), kind]
    times.buckets[bisect_left(BOUNDS, seconds)] += 1
    times.seconds += seconds


def count_end(agent_id: str, kind: PacketType, end: str) -> None:
    """Count a packet that has ended in this worker."""
    _figures.packets[_label(agent_id, kind), kind, end] += 1


@contextmanager
def counted_emit(agent_id: str, kind: PacketType | None, *, is_held: bool = False) -> Iterator[None]:
    """Count an emission by how it ends; no kind = the payload is none of the 14.

    One that `is_held` has not ended when all went well: it is counted when it is published.
    """
    result = "" if is_held else "confirmed"
    try:
        yield
    except EmitError as error:
        result = _RESULTS[type(error)]
        raise
    finally:
        if result:
            _figures.emits[_label(agent_id, kind or ""), kind or "", result] += 1

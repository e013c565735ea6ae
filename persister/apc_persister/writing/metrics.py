"""What a log writer tells /metrics (docs/how-to/observability.md); the gauges of its checkpoints are beside their
exporter.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Protocol
from weakref import WeakSet

from prometheus_client import REGISTRY, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from apc_log.batch import LogBatch
from apc_persister.writing.intake import Received

_COMMIT_SECONDS = Histogram(
    "apc_log_commit_seconds",
    "Time of a transaction of the log writer.",
    buckets=(1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 1, 5, 25),
)
_DELAY_SECONDS = Histogram(
    "apc_log_commit_delay_seconds",
    "From the moment at which the oldest batch of a transaction was judged, by the gate's clock, to its commit.",
    buckets=(5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 1, 5, 25, 100),
)
COUNTED = {
    "transactions": "Transactions of the log writer.",
    "messages": "Log batches and epoch openings that were committed.",
    "entries": "Entries appended to the log.",
    "duplicates": "Batches that were in the log already.",
    "fenced": "Batches of a gate that had lost its shard.",
    "unstored": "Entries that could not be stored and are kept as conflicts.",
    "failures": "Attempts that the database did not take.",
}
"""The fields of WriterCounts, each of them a counter."""


def count_commit(messages: Sequence[Received], seconds: float) -> None:
    """Time a transaction that took these messages."""
    _COMMIT_SECONDS.observe(seconds)
    judged = [message.content.judged_at for message in messages if isinstance(message.content, LogBatch)]
    if judged:
        _DELAY_SECONDS.observe(max(0.0, (datetime.now(UTC) - min(judged)).total_seconds()))


class Counted(Protocol):
    """A log writer: its shard, and the fields of COUNTED."""

    @property
    def shard(self) -> int: ...

    @property
    def counts(self) -> object: ...

    @property
    def is_ready(self) -> bool: ...


class Writes(Protocol):
    """A persister."""

    @property
    def writers(self) -> Sequence[Counted]: ...


class _Writers(Collector):
    """What is read when somebody asks: the writers of this process."""

    def __init__(self) -> None:
        self.persisters: WeakSet[Writes] = WeakSet()

    def collect(self) -> Iterator[Metric]:
        writers = [writer for persister in list(self.persisters) for writer in persister.writers]
        for name, meaning in COUNTED.items():
            counter = CounterMetricFamily(f"apc_log_{name}", meaning, labels=["shard"])
            for shard in sorted({writer.shard for writer in writers}):
                counts = [writer.counts for writer in writers if writer.shard == shard]
                counter.add_metric([str(shard)], sum(getattr(one, name) for one in counts))
            yield counter
        meaning = "1 = it consumes, and its database answers."
        ready = GaugeMetricFamily("apc_log_writer_ready", meaning, labels=["shard"])
        for writer in writers:
            ready.add_metric([str(writer.shard)], int(writer.is_ready))
        yield ready


_writers = _Writers()
REGISTRY.register(_writers)


def follow_writers(persister: Writes) -> None:
    """Show the writers of a persister as long as it lives."""
    _writers.persisters.add(persister)

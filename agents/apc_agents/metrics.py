"""What a worker tells /metrics (docs/observability.md)."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from time import perf_counter

from prometheus_client import Counter, Histogram

from apc_agents.errors import EmitError, EmitRefused, EmitRejected, EmitTimeout, EmitUnconfirmed
from apc_bus.agent_label import agent_label
from apc_contracts.receipts import ReceiptKind
from apc_contracts.vocabulary import PacketType

FAILED = "failed"
"""Label `end` of a packet whose handler raised: it becomes a dead letter."""

_HANDLER_SECONDS = Histogram(
    "apc_worker_handler_seconds",
    "Time of one run of a handler, with its emissions and the saving of its state.",
    ("agent", "type"),
    buckets=(1e-3, 5e-3, 10e-3, 25e-3, 0.1, 0.5, 2.5, 10, 60, 600),
)
_PACKETS = Counter(
    "apc_worker_packets",
    "Packets that came to an end in this worker: outcome, reject, retry, expired, failed.",
    ("agent", "type", "end"),
)
_EMITS = Counter(
    "apc_worker_emits",
    "Packets emitted: confirmed, refused (here or by the gate), unconfirmed, rejected or timeout (no ACK).",
    ("agent", "type", "result"),
)
_RESULTS: dict[type[EmitError], str] = {
    EmitRefused: "refused",
    EmitUnconfirmed: "unconfirmed",
    EmitRejected: "rejected",
    EmitTimeout: "timeout",
}
ENDS = frozenset({ReceiptKind.OUTCOME, ReceiptKind.REJECT, ReceiptKind.RETRY, ReceiptKind.EXPIRED})
"""The receipts that say how a packet ended."""

_handler_seconds, _packets, _emits = cache(_HANDLER_SECONDS.labels), cache(_PACKETS.labels), cache(_EMITS.labels)


@contextmanager
def timed_handler(agent_id: str, kind: PacketType) -> Iterator[None]:
    """Time a run of a handler, however it ends."""
    began = perf_counter()
    try:
        yield
    finally:
        _handler_seconds(agent_label(agent_id), kind.value).observe(perf_counter() - began)


def count_end(agent_id: str, kind: PacketType, end: str) -> None:
    """A packet has come to an end in this worker."""
    _packets(agent_label(agent_id), kind.value, end).inc()


@contextmanager
def counted_emit(agent_id: str, kind: PacketType | None) -> Iterator[None]:
    """Count an emission by how it ends; no kind = the payload is none of the 14."""
    result = "confirmed"
    try:
        yield
    except EmitError as error:
        result = _RESULTS[type(error)]
        raise
    finally:
        _emits(agent_label(agent_id), "" if kind is None else kind.value, result).inc()

"""The traces of packets through the gate, and the gate's own spans.

A judged packet has a span under its sender's; a log batch has one that links to those of all its packets (fan-in). A
later delivery, at a retry or a RESUME, belongs to the packet's trace as long as this lease remembers it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from logging import DEBUG
from uuid import UUID

import orjson
import structlog
from opentelemetry.trace import SpanKind

from apc_bus.port import Delivery, Message
from apc_bus.telemetry import LogIds, packet_ids
from apc_bus.topology import LOG
from apc_bus.tracing import NO_TRACE, TraceHeaders, headers_of, is_tracing, packet_attributes, start_span, trace_headers
from apc_contracts.errors import PacketRefused
from apc_contracts.judging.verdict import Verdict
from apc_contracts.wire.parsing import ReceivedPacket, parse_packet
from apc_log.batch import ConflictEntry, Entry, PacketEntry
from apc_orchestrator.batch import Batch
from apc_orchestrator.judging.inputs import Input

# What a gate logs about packets: ids, never content. Shard, epoch and batch are bound already.

_log = structlog.get_logger("apc_orchestrator")


def tell_judged(entries: Iterable[Entry]) -> None:
    """Log a line for each packet of a confirmed batch; free of cost above DEBUG."""
    if not _log.is_enabled_for(DEBUG):
        return
    for entry in entries:
        if isinstance(entry, PacketEntry):
            _log.debug(
                "packet_judged",
                packet_id=str(entry.packet_id),
                packet_type=entry.packet_type,
                session_id=entry.session_id,
                run_id=entry.run_id,
                agent_id=entry.sender_agent_id,
                verdict=entry.verdict,
                code=None if entry.refusal is None else orjson.loads(entry.refusal)["code"],
            )
        elif isinstance(entry, ConflictEntry):
            _log.debug(
                "input_set_aside",
                packet_id=None if entry.packet_id is None else str(entry.packet_id),
                session_id=entry.session_id,
                user_id=entry.user_id,
                kind=entry.kind,
                code=entry.code,
            )


def ids_of(delivery: Delivery) -> LogIds:
    """Return the ids of an input that could not be judged, as far as they are readable."""
    try:
        packet = parse_packet(delivery.message.body)
    except PacketRefused:
        return {"packet_id": delivery.message.message_id}
    return {**packet_ids(packet), "agent_id": packet.sender.agent_id}


REMEMBERED = 10_000
"""Packets whose trace is kept for later deliveries."""


class Traces:
    """The traces of the packets of one lease."""

    def __init__(self) -> None:
        self._known: OrderedDict[UUID, TraceHeaders] = OrderedDict()

    def begin(self, batch: Batch, found: Input, message: Message) -> None:
        """Begin the span of an input that is judged now: what it causes belongs to its trace."""
        batch.trace = trace_headers(message.headers)
        if not isinstance(found, ReceivedPacket):
            return
        packet = found.packet
        if is_tracing():
            span = start_span(
                f"judge {packet.packet_type}", SpanKind.CONSUMER, batch.trace, (), packet_attributes(packet)
            )
            if span is not None:
                batch.spans.append(span)
                batch.trace = headers_of(span)
        if batch.trace:
            self._known[packet.packet_id] = batch.trace
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    def of(self, batch: Batch, packet_id: UUID) -> TraceHeaders:
        """Return the trace headers for a delivery of this packet; a packet without a trace continues its cause's."""
        return self._known.get(packet_id, batch.trace)


def note_verdict(batch: Batch, verdict: Verdict) -> None:
    """Record the verdict on the span of the packet that is being judged."""
    if batch.spans:
        batch.spans[-1].set_attribute("apc.verdict", verdict.kind.value)
        if verdict.refusal is not None:
            batch.spans[-1].set_attribute("apc.refusal_code", verdict.refusal.code)


@contextmanager
def logged(batch: Batch, shard: int, epoch: int) -> Iterator[TraceHeaders]:
    """Hold the span of a log batch from its publication to its confirm; yield the headers of its message."""
    where: dict[str, str | int] = {
        "messaging.destination.name": LOG,
        "apc.shard": shard,
        "apc.epoch": epoch,
        "apc.batch": batch.number,
        "apc.entries": len(batch.entries),
    }
    span = start_span("log batch", SpanKind.PRODUCER, NO_TRACE, batch.spans, where)
    if span is None:
        yield NO_TRACE
        return
    try:
        yield headers_of(span)
    finally:
        span.end()


def end_spans(batch: Batch) -> None:
    """End the spans of a delivered batch.

    A batch that was never confirmed leaves no spans: it never happened.
    """
    for span in batch.spans:
        span.end()

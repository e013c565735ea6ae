"""What a log writer says of a transaction: a span while tracing is on, and lines at DEBUG. Ids, never content."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from logging import DEBUG

import structlog
from opentelemetry.trace import SpanKind

from apc_bus.tracing import NO_TRACE, fail_span, is_tracing, start_span, trace_headers
from apc_log.batch import LogBatch, PacketEntry
from apc_persister.writing.intake import Received

_log = structlog.get_logger(__name__)


@contextmanager
def in_transaction(shard: int, messages: Sequence[Received]) -> Iterator[None]:
    """Open the span of a transaction, with a link to the log batch of each message (fan-in)."""
    if not is_tracing():
        yield
        return
    links = [trace_headers(message.delivery.message.headers) for message in messages]
    where: dict[str, str | int] = {"db.system.name": "postgresql", "apc.shard": shard, "apc.batches": len(messages)}
    span = start_span("commit log batches", SpanKind.CONSUMER, NO_TRACE, links, where)
    assert span is not None
    try:
        yield
    except Exception as error:
        fail_span(span, error)
        raise
    finally:
        span.end()


def tell_committed(messages: Sequence[Received]) -> None:
    """Write a line for each batch that is in the log now, and for each packet in it; costs nothing above DEBUG."""
    if not _log.is_enabled_for(DEBUG):
        return
    for batch in (message.content for message in messages if isinstance(message.content, LogBatch)):
        where = {"epoch": batch.epoch, "batch": batch.batch_no}
        _log.debug("batch_committed", entries=len(batch.entries), **where)
        for entry in batch.entries:
            if isinstance(entry, PacketEntry):
                _log.debug(
                    "packet_committed",
                    packet_id=str(entry.packet_id),
                    packet_type=entry.packet_type,
                    session_id=entry.session_id,
                    run_id=entry.run_id,
                    agent_id=entry.sender_agent_id,
                    **where,
                )

"""Traces over all hops: the W3C trace context in the AMQP headers `traceparent` and `tracestate`.

Off by default: then nothing is made, and the context of a sender that has one is handed on as it came. On, from
`use_tracer_provider` on, each hop adds its span.

Source: W3C Trace Context; OpenTelemetry semantic conventions for messaging.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from types import MappingProxyType

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from apc_bus.headers import TRACEPARENT, TRACESTATE
from apc_bus.port import HeaderValue
from apc_contracts.packet import Packet

TraceHeaders = Mapping[str, str]
"""`traceparent`, and `tracestate` where there is one; empty = no trace."""
NO_TRACE: TraceHeaders = MappingProxyType({})
LONGEST_STATE = 512
"""Characters of a tracestate that every hop must hand on; a longer one is left out."""

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_propagator = TraceContextTextMapPropagator()
_handed_on: ContextVar[TraceHeaders] = ContextVar("apc_trace", default=NO_TRACE)
_NOTHING = nullcontext()
_tracer: Tracer | None = None


def use_tracer_provider(provider: TracerProvider | None) -> None:
    """Make the spans of this process with this provider from now on; None = make none."""
    global _tracer
    _tracer = None if provider is None else provider.get_tracer("apc_bus")


def is_tracing() -> bool:
    """Return whether spans are made."""
    return _tracer is not None


def trace_headers(values: Mapping[str, HeaderValue]) -> TraceHeaders:
    """Return the trace context in a message's headers; what is no trace context counts as none."""
    parent = values.get(TRACEPARENT)
    if type(parent) is not str or _TRACEPARENT.fullmatch(parent) is None:
        return NO_TRACE
    state = values.get(TRACESTATE)
    if type(state) is str and 0 < len(state) <= LONGEST_STATE:
        return {TRACEPARENT: parent, TRACESTATE: state}
    return {TRACEPARENT: parent}


def start_span(
    name: str,
    kind: SpanKind,
    parent: TraceHeaders = NO_TRACE,
    links: Iterable[Span | TraceHeaders] = (),
    attributes: Mapping[str, AttributeValue] | None = None,
) -> Span | None:
    """Return a span that the caller ends; None while tracing is off. Without a parent it begins its own trace."""
    if _tracer is None:
        return None
    found = [Link((link if isinstance(link, Span) else _span_of(link)).get_span_context()) for link in links if link]
    return _tracer.start_span(name, _context_of(parent), kind, attributes, found)


def headers_of(span: Span) -> TraceHeaders:
    """Return what a message carries that this span sends."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    return carrier


def current_trace() -> TraceHeaders:
    """Return what a message carries that is sent here and now."""
    if _tracer is None:
        return _handed_on.get()
    return headers_of(trace.get_current_span())


def in_span(
    act: str,
    what: str | None,
    kind: SpanKind,
    parent: TraceHeaders | None = None,
    attributes: Mapping[str, AttributeValue] | None = None,
) -> AbstractContextManager[None]:
    """Run in a span named `act what`, which everything inside belongs to. No parent = the span that is current here.

    While tracing is off, what is sent inside carries the parent's context.
    """
    if _tracer is not None:
        return _in_span_of(_tracer, f"{act} {what}", kind, parent, attributes)
    return _handing_on(parent) if parent else _NOTHING


@contextmanager
def _handing_on(parent: TraceHeaders) -> Iterator[None]:
    token = _handed_on.set(parent)
    try:
        yield
    finally:
        _handed_on.reset(token)


@contextmanager
def _in_span_of(
    tracer: Tracer,
    name: str,
    kind: SpanKind,
    parent: TraceHeaders | None,
    attributes: Mapping[str, AttributeValue] | None,
) -> Iterator[None]:
    context = None if parent is None else _context_of(parent)
    # What goes wrong is told by type alone: the text of an exception may quote a body.
    with tracer.start_as_current_span(
        name, context, kind, attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield
        except Exception as error:
            fail_span(span, error)
            raise


def describe(packet: Packet) -> None:
    """Add the packet's ids to the current span."""
    if _tracer is not None:
        trace.get_current_span().set_attributes(packet_attributes(packet))


def fail(error: Exception) -> None:
    """Mark the current span as failed."""
    if _tracer is not None:
        fail_span(trace.get_current_span(), error)


def fail_span(span: Span, error: Exception) -> None:
    """Mark a span as failed."""
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, type(error).__name__))


def packet_attributes(packet: Packet) -> dict[str, AttributeValue]:
    """Return what a span says of a packet: ids, never its content."""
    where = packet.trace
    return {
        "messaging.system": "rabbitmq",
        "messaging.message.id": str(packet.packet_id),
        "messaging.message.conversation_id": str(where.root_packet_id),
        "apc.packet_id": str(packet.packet_id),
        "apc.packet_type": packet.packet_type.value,
        "apc.session_id": where.session_id,
        "apc.run_id": where.run_id,
        "apc.sender": packet.sender.agent_id,
    }


def _context_of(parent: TraceHeaders) -> Context:
    """Return the context of a parent; without one an empty context, so that none is inherited."""
    return _propagator.extract(parent, Context())


def _span_of(headers: TraceHeaders) -> Span:
    return trace.get_current_span(_context_of(headers))

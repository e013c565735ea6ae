"""Logs, labels of metrics and traces, in one form for every service."""

import asyncio
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar, Token
from enum import StrEnum
from functools import partial
from io import StringIO, TextIOBase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

import structlog
from structlog.tracebacks import ExceptionDictTransformer

from apc_bus.headers import TRACEPARENT, TRACESTATE
from apc_contracts.packet import Packet
from apc_contracts.text import printable

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

LogIds = dict[str, str | int]
"""What a log line says of where it belongs: packet_id, session_id, run_id, agent_id, shard, epoch, batch."""
SubjectToken = Token[Callable[[], LogIds] | None]

_subject: ContextVar[Callable[[], LogIds] | None] = ContextVar("apc_log_subject", default=None)

# Without local variables: among them are packet bodies and URLs with passwords.
_TRACEBACKS = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))


def configure_logs(level: str = "INFO", form: Literal["auto", "json", "console"] = "auto") -> None:
    """Set up structlog and the standard library's loggers; call it once, at the entry point.

    Args:
        level: the lowest level that is written: DEBUG, INFO, WARNING or ERROR.
        form: `auto` is `console` when standard error is a terminal, else `json`.
    """
    stream = cast(TextIO, _LogStream(sys.stderr))
    is_console = form == "console" or (form == "auto" and stream.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        merge_subject,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[structlog.typing.Processor] = (
        [make_printable, _console_renderer(is_styled(stream))]
        if is_console
        else [_TRACEBACKS, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    _route_standard_library(shared, renderer, level, stream)


def _console_renderer(colors: bool) -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_printable_traceback)


def _printable_traceback(stream: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    """Write a traceback without escape sequences: an exception may quote what an agent has sent."""
    written = StringIO()
    structlog.dev.plain_traceback(written, exc_info)
    stream.write(printable(written.getvalue()))


def is_styled(stream: TextIO) -> bool:
    """Return whether text written there may have colours and weights: NO_COLOR, TERM=dumb and files have none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")


class _LogStream(TextIOBase):
    """Standard error, as far as it can be written: a full disk, or a reader that has left, ends nothing but the log."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, or lose the text."""
        if self._stream is not None:
            with suppress(OSError, ValueError):  # ValueError: it is closed
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or lose what was written."""
        if self._stream is not None:
            with suppress(OSError, ValueError):
                self._stream.flush()

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return self._stream is not None and self._stream.isatty()


def get_logger(name: str, *, level: str | None = None) -> Any:
    """Return a logger that follows what the program has set up: structlog, else the standard library's `logging`.

    structlog's own default is not used: it prints every event to standard output, which belongs to the program.

    Args:
        name: of the logger in `logging`.
        level: the lowest level that is written, whatever level structlog is set to.
    """
    return structlog.wrap_logger(None, wrapper_class=cast(Any, partial(_bound_logger, name, level)))


def _bound_logger(name: str, level: str | None, logger: Any, *, processors: Any, context: Any) -> Any:
    if structlog.is_configured():
        own: Any = None if level is None else structlog.make_filtering_bound_logger(level)
        kind = own or structlog.get_config()["wrapper_class"]
        return kind(logger, processors=processors, context=context)
    return structlog.stdlib.BoundLogger(logging.getLogger(name), processors=_FOR_LOGGING, context=context)


def _log_record(logger: Any, name: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """Return the arguments of a method of `logging.Logger`: one line with the fields; what they quote is escaped."""
    options = {"exc_info": event.pop("exc_info", None), "stacklevel": _FRAMES}
    return (" ".join([event.pop("event"), *(f"{key}={value!r}" for key, value in event.items())]),), options


def merge_subject(logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return a processor of structlog: adds the ids of the current packet to a line that does not have them itself.

    `configure_logs` has it in its list; code that configures structlog itself adds it to its list.
    """
    ids = _subject.get()
    if ids is not None:
        for key, value in ids().items():
            event.setdefault(key, value)
    return event


_FRAMES = 4
"""From `logging.Logger` to the caller of a logger: three of structlog are between them."""
_FOR_LOGGING = (structlog.stdlib.filter_by_level, structlog.contextvars.merge_contextvars, merge_subject, _log_record)


def make_printable(logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return a processor of structlog for terminals: takes escape sequences out of what a line quotes.

    The message of a library may quote what an agent has sent: it stays one line.
    """
    event["event"] = str(event.get("event", "")).replace("\n", "\\n")
    for key, value in event.items():
        if not isinstance(value, int | float | bool | None):
            event[key] = printable(value if isinstance(value, str) else str(value)) if key != "exc_info" else value
    return event


def begin_subject(ids: Callable[[], LogIds]) -> SubjectToken:
    """Add a subject's ids to what this context logs from now on; the ids are computed only when a line is written."""
    return _subject.set(ids)


def end_subject(token: SubjectToken) -> None:
    """Restore the previous subject."""
    _subject.reset(token)


def _route_standard_library(
    shared: list[structlog.typing.Processor],
    renderer: list[structlog.typing.Processor],
    level: str,
    stream: TextIO,
) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=level, force=True)
    quiet_libraries()


def quiet_libraries() -> None:
    """Let the libraries of broker and database say nothing below CRITICAL, unless code has given their logger a level.

    They report with a traceback each time what the adapter translates, reports and mends itself.
    """
    for name in ("aiormq", "aio_pika", "asyncpg.pool", "faststream"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL)


def packet_ids(packet: Packet) -> LogIds:
    """Return the ids of a packet for the log lines about it.

    The agent_id names who does something with it, so it is not here.
    """
    where = packet.trace
    return {
        "packet_id": str(packet.packet_id),
        "packet_type": packet.packet_type.value,
        "session_id": where.session_id,
        "run_id": where.run_id,
    }


# Warnings of what others can provoke at will: one line a second, with a count.

INTERVAL_SECONDS = 1.0


class CountedWarning:
    """One kind of event: the first is written at once, those of the next second together, with the last one's fields.

    Needs a running event loop.
    """

    def __init__(self, log: Any, event: str, interval: float = INTERVAL_SECONDS) -> None:
        self._log: structlog.stdlib.BoundLogger = log
        self._event = event
        self._interval = interval
        self._count = 0
        self._fields: dict[str, Any] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, **fields: Any) -> None:
        """Count one more event."""
        self._count += 1
        self._fields = fields
        if self._timer is None:
            self._write()

    def _write(self) -> None:
        self._timer = None
        if not self._count:
            return
        count, self._count = self._count, 0
        self._log.warning(self._event, count=count, **self._fields)
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._write)


# The label `agent` of a metric: each value is its own time series, so there may only be so many of them.

AGENT_SERIES = 1_200
"""Time series with the label `agent` in one process; APC_AGENT_METRICS sets another number."""
OTHERS = "_others"
"""What counts for all agents beyond them; no agent_id begins with `_`."""


class AgentLabels:
    """Which agents have their own series, first come, first served. Stable for the lifetime of a process.

    ```python
    labels = AgentLabels(most=30)
    assert labels.of("desk", "IDEA", series=24) == "desk"
    assert labels.of("clerk", "IDEA", series=24) == OTHERS, "there is no room for a second one"
    ```
    """

    def __init__(self, most: int = AGENT_SERIES) -> None:
        self.most = most
        """Series of all agents that have their own, at most."""
        self._used = 0
        self._known: dict[tuple[str, str], str] = {}

    def of(self, agent_id: str, kind: str, series: int) -> str:
        """Return the label's value: the agent's id, or OTHERS where there is no room for its series.

        Args:
            agent_id: whose.
            kind: what is counted of it; an agent may have room for one kind and not for another.
            series: the most that it can have of this kind.
        """
        known = self._known.get((agent_id, kind))
        if known is not None:
            return known
        if self._used + series > self.most:
            return OTHERS
        self._used += series
        return self._known.setdefault((agent_id, kind), agent_id)


agent_labels = AgentLabels()
"""Those of this process."""


# Traces over all hops: the W3C trace context in the AMQP headers `traceparent` and `tracestate`.
#
# Off by default: then nothing is made, and the context of a sender that has one is handed on as it came. On, from
# `use_tracer_provider` on, each hop adds its span, or only the work of agents does (`apc_bus.gen_ai`). OpenTelemetry is
# imported when the first span is made: who has a provider has it installed.
#
# Source: W3C Trace Context; OpenTelemetry semantic conventions for messaging.

TraceHeaders = Mapping[str, str]
"""`traceparent`, and `tracestate` where there is one; empty = no trace."""
NO_TRACE: TraceHeaders = MappingProxyType({})
LONGEST_STATE = 512
"""Characters of a tracestate that every hop must hand on; a longer one is left out."""

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_handed_on: ContextVar[TraceHeaders] = ContextVar("apc_trace", default=NO_TRACE)
_NOTHING = nullcontext()


class SpanKind(StrEnum):
    """OpenTelemetry's kinds of spans that a hop makes."""

    CONSUMER = "CONSUMER"
    INTERNAL = "INTERNAL"
    PRODUCER = "PRODUCER"


class TraceScope(StrEnum):
    """What spans are made of."""

    AGENTS = "agents"
    """The work of agents: a handler that runs, its tools, its model."""
    ALL = "all"
    """Every hop too: sending, judging, logging."""


_provider: "TracerProvider | None" = None
_tracer: "Tracer | None" = None
_scope = TraceScope.ALL


def use_tracer_provider(provider: "TracerProvider | None", scope: TraceScope = TraceScope.ALL) -> None:
    """Make the spans of this process with this provider from now on; None = make none."""
    global _provider, _tracer, _scope
    _provider, _scope = provider, scope
    _tracer = None if provider is None else provider.get_tracer("apc_bus")


def tracer_provider() -> "TracerProvider | None":
    """Return what makes the spans of this process; None while none are made."""
    return _provider


def is_tracing() -> bool:
    """Return whether every hop makes its span."""
    return _tracer is not None and _scope is TraceScope.ALL


def trace_headers(values: Mapping[str, object]) -> TraceHeaders:
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
    links: "Iterable[Span | TraceHeaders]" = (),
    attributes: "Mapping[str, AttributeValue] | None" = None,
) -> "Span | None":
    """Return a span that the caller ends; None unless every hop makes one. Without a parent it begins its own trace."""
    if _tracer is None or not is_tracing():
        return None
    from opentelemetry import trace

    spans = [link if isinstance(link, trace.Span) else _span_of(link) for link in links if link]
    linked = [trace.Link(span.get_span_context()) for span in spans]
    return _tracer.start_span(name, _context_of(parent), trace.SpanKind[kind], attributes, linked)


def headers_of(span: "Span") -> TraceHeaders:
    """Return the trace headers of a message that this span sends."""
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
    return carrier


def current_trace() -> TraceHeaders:
    """Return the trace headers of a message that the current span sends."""
    if _tracer is None:
        return _handed_on.get()
    return headers_of(_current_span()) or _handed_on.get()


def in_span(
    act: str,
    what: str | None,
    kind: SpanKind,
    parent: TraceHeaders | None = None,
    attributes: "Mapping[str, AttributeValue] | None" = None,
) -> AbstractContextManager[None]:
    """Run in a span named `act what`, which everything inside belongs to. No parent = the span that is current here.

    Unless every hop makes its span, what is sent inside carries the parent's context.
    """
    if _tracer is not None and is_tracing():
        return _in_span_of(_tracer, f"{act} {what}", kind, parent, attributes)
    return _handing_on(parent) if parent else _NOTHING


def in_work(
    name: str,
    kind: SpanKind,
    parent: TraceHeaders | None,
    attributes: "Mapping[str, AttributeValue]",
    expected: tuple[type[Exception], ...] = (),
    undone: tuple[type[Exception], ...] = (),
) -> AbstractContextManager[None]:
    """Run in a span of an agent's work, which is made in both scopes; nothing while tracing is off.

    Args:
        name: of the span.
        kind: of the span.
        parent: None = the span that is current here.
        attributes: what the span says.
        expected: exceptions that are no failure of the work.
        undone: exceptions after which the work begins again, as if it had not begun: there is no span of it.
    """
    if _tracer is None:
        return _NOTHING
    return _in_span_of(_tracer, name, kind, parent, attributes, expected, undone)


@contextmanager
def _handing_on(parent: TraceHeaders) -> Iterator[None]:
    token = _handed_on.set(parent)
    try:
        yield
    finally:
        _handed_on.reset(token)


@contextmanager
def _in_span_of(
    tracer: "Tracer",
    name: str,
    kind: SpanKind,
    parent: TraceHeaders | None,
    attributes: "Mapping[str, AttributeValue] | None",
    expected: tuple[type[Exception], ...] = (),
    undone: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    from opentelemetry import trace

    context = None if parent is None else _context_of(parent)
    span = tracer.start_span(name, context, trace.SpanKind[kind], attributes)
    # What goes wrong is told by type alone: the text of an exception may quote a body.
    with trace.use_span(span, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except undone:
            raise  # a span that never ends is not exported
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, expected):
                fail_span(span, error)
            span.end()
            raise
        span.end()


def describe(packet: Packet) -> None:
    """Add the packet's ids to the current span of its hop."""
    if is_tracing():
        _current_span().set_attributes(packet_attributes(packet))


def note(attributes: "Mapping[str, AttributeValue]") -> None:
    """Add attributes to the current span."""
    if _tracer is not None:
        _current_span().set_attributes(attributes)


def fail(error: Exception) -> None:
    """Mark the current span of a hop as failed."""
    if is_tracing():
        fail_span(_current_span(), error)


def fail_span(span: "Span", error: Exception) -> None:
    """Mark a span as failed."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, type(error).__name__))


def packet_attributes(packet: Packet) -> "dict[str, AttributeValue]":
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


def _context_of(parent: TraceHeaders) -> "Context":
    """Return the context of a parent; without one an empty context, so that none is inherited."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(parent, Context())


def _span_of(headers: TraceHeaders) -> "Span":
    return _current_span(_context_of(headers))


def _current_span(context: "Context | None" = None) -> "Span":
    from opentelemetry.trace import get_current_span

    return get_current_span(context)

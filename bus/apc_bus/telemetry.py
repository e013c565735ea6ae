"""Logs: structlog events in the past tense, JSON in production, coloured lines at a terminal."""

import asyncio
import logging
import sys
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar, Token
from typing import Any, Literal

import structlog
from structlog.tracebacks import ExceptionDictTransformer

from apc_contracts.packet import Packet
from apc_contracts.text import printable

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
    is_console = form == "console" or (form == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        merge_subject,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[structlog.typing.Processor] = (
        [make_printable, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if is_console
        else [_TRACEBACKS, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    _route_standard_library(shared, renderer, level)


def leave_locals_out() -> None:
    """Leave local variables out of tracebacks, as `configure_logs` does, in a program that has not set structlog up.

    structlog's own default shows them, and the rendering of one traceback holds the event loop for half a second.
    """
    if not structlog.is_configured():
        structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback


def merge_subject(logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return a processor of structlog: adds the ids of the current packet to a line that does not have them itself.

    `configure_logs` has it in its list; code that configures structlog itself adds it to its list.
    """
    ids = _subject.get()
    if ids is not None:
        for key, value in ids().items():
            event.setdefault(key, value)
    return event


def make_printable(logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return a processor of structlog for terminals: takes escape sequences out of what a line quotes."""
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
    shared: list[structlog.typing.Processor], renderer: list[structlog.typing.Processor], level: str
) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=level, force=True)
    # The AMQP libraries report at ERROR what the adapter translates, reports and mends itself.
    for name in ("aiormq", "aio_pika", "faststream"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


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

MOST_AGENTS = 200
"""Agents that have their own value in one process."""
OTHERS = "_others"
"""What counts for all agents beyond them; no agent_id begins with `_`."""

_known: dict[str, str] = {}


def agent_label(agent_id: str) -> str:
    """Return the label's value for an agent: its id, or OTHERS once MOST_AGENTS have one.

    Stable for the lifetime of a process.
    """
    known = _known.get(agent_id)
    if known is not None:
        return known
    if len(_known) >= MOST_AGENTS:
        return OTHERS
    return _known.setdefault(agent_id, agent_id)

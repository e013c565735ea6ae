"""What a service says of itself over HTTP: `/healthz`, `/readyz`, `/startup`, `/metrics`."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from apc_console.errors import InputUnusable

StartResponse = Callable[[str, list[tuple[str, str]]], object]
LONGEST_TURN_SECONDS = 2.0
"""So long the event loop may take to turn."""
OK, UNAVAILABLE, NOT_FOUND = "200 OK", "503 Service Unavailable", "404 Not Found"


class HealthPages:
    """The pages of one service, as a WSGI application.

    `/healthz`: the process answers. `/readyz`: nothing stands against relying on it now, else what does, a line each.
    `/startup`: it was ready once. They run in threads of their own: `problems` must only read.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, problems: Callable[[], Sequence[str]]) -> None:
        self._loop = loop
        self._problems = problems
        self._has_started = False

    def __call__(self, environment: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        match environment["PATH_INFO"]:
            case "/metrics":
                from prometheus_client import make_wsgi_app

                answer: Iterable[bytes] = make_wsgi_app()(environment, start)
                return answer
            case "/healthz":
                return _answer(start, OK)
            case "/readyz":
                problems = self._look()
                return _answer(start, UNAVAILABLE if problems else OK, problems)
            case "/startup":
                return _answer(start, OK if self._has_started or not self._look() else UNAVAILABLE)
            case _:
                return _answer(start, NOT_FOUND)

    def _look(self) -> Sequence[str]:
        problems = self._problems() or self._stuck()
        self._has_started = self._has_started or not problems
        return problems

    def _stuck(self) -> Sequence[str]:
        """Whether the service's own loop turns: a handler that blocks it lets everything else look well."""
        turned = threading.Event()
        self._loop.call_soon_threadsafe(turned.set)
        if turned.wait(LONGEST_TURN_SECONDS):
            return ()
        return (f"the event loop did not turn within {LONGEST_TURN_SECONDS:g} s: something blocks it",)


def _answer(start: StartResponse, status: str, lines: Sequence[str] = ()) -> list[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{line}\n".encode() for line in (status.partition(" ")[2], *lines)]


@contextmanager
def serve_health(port: int | None, problems: Callable[[], Sequence[str]]) -> Iterator[None]:
    """Serve the pages of the service of this event loop on all addresses while the context lasts; None = not at all.

    Args:
        problems: what stands against being ready now, a sentence each; called in other threads.

    Raises:
        InputUnusable: the port is taken, or not ours to take.
    """
    if port is None:
        yield
        return
    try:
        server = make_server("", port, HealthPages(asyncio.get_running_loop(), problems), _Server, _QuietHandler)
    except OSError as error:
        raise InputUnusable(f"APC_HEALTH_PORT {port} cannot be used: {error.strerror}") from error
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """A probe every few seconds is no event."""

"""What a service says of itself over HTTP: `/healthz`, `/readyz`, `/startup`, `/metrics`."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from apc_console.errors import InputUnusable

StartResponse = Callable[[str, list[tuple[str, str]]], object]
OK, UNAVAILABLE, NOT_FOUND = "200 OK", "503 Service Unavailable", "404 Not Found"


class HealthPages:
    """The pages of one service, as a WSGI application.

    `/healthz`: the process answers. `/readyz`: `is_ready` holds now (its queues are consumed, its database answers).
    `/startup`: it was ready once.
    """

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._has_started = False

    def __call__(self, environment: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        match environment["PATH_INFO"]:
            case "/metrics":
                from prometheus_client import make_wsgi_app

                answer: Iterable[bytes] = make_wsgi_app()(environment, start)
                return answer
            case "/healthz":
                status = OK
            case "/readyz":
                status = OK if self._check() else UNAVAILABLE
            case "/startup":
                status = OK if self._has_started or self._check() else UNAVAILABLE
            case _:
                status = NOT_FOUND
        start(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{status.partition(' ')[2]}\n".encode()]

    def _check(self) -> bool:
        is_ready = self._is_ready()
        self._has_started = self._has_started or is_ready
        return is_ready


@contextmanager
def serve_health(port: int | None, is_ready: Callable[[], bool]) -> Iterator[None]:
    """Serve the pages on all addresses while the context lasts; None = not at all.

    The pages run in threads: `is_ready` must only read.

    Raises:
        InputUnusable: the port is taken, or not ours to take.
    """
    if port is None:
        yield
        return
    try:
        server = make_server("", port, HealthPages(is_ready), _Server, _QuietHandler)
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

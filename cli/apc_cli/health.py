"""The health pages of a service over HTTP: `/healthz`, `/readyz`, `/startup`, `/metrics`."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus

from apc_cli.errors import InputUnusable
from apc_web.local_names import LOOPBACK_NAMES, is_loopback, name_of

LONGEST_TURN_SECONDS = 2.0
"""Seconds that the service's event loop may take for a turn."""
MOST_CONNECTIONS = 64
"""Connections at the same time; further ones are closed at once."""
EXCHANGE_SECONDS = 10.0
"""Seconds from beginning to end of a connection: a client that is slow or does not read is cut."""
LONGEST_HEADER = 16_384
Answer = tuple[HTTPStatus, str, bytes]


class HealthPages:
    """The pages of one service.

    `/healthz`: the process answers. `/readyz`: the process is ready, or one line per reason why not, and the service's
    remarks. `/startup`: it was ready once. They run in a separate thread: `problems` and `remarks` must only read.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        problems: Callable[[], Sequence[str]],
        remarks: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._loop = loop
        self._problems = problems
        self._remarks = remarks
        self._has_started = False

    async def answer(self, path: str) -> Answer:
        """Return status, content type and body of a page."""
        match path:
            case "/metrics":
                from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

                return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest()
            case "/healthz":
                return _text(HTTPStatus.OK)
            case "/readyz":
                problems = await self._look()
                status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
                return _text(status, [*problems, *self._remarks()])
            case "/startup":
                is_up = self._has_started or not await self._look()
                return _text(HTTPStatus.OK if is_up else HTTPStatus.SERVICE_UNAVAILABLE)
            case _:
                return _text(HTTPStatus.NOT_FOUND)

    async def _look(self) -> Sequence[str]:
        problems = self._problems() or await self._stuck()
        self._has_started = self._has_started or not problems
        return problems

    async def _stuck(self) -> Sequence[str]:
        """Return whether the service's own loop is stuck: a handler that blocks it lets everything else look well."""
        here, turned = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # the pages are gone meanwhile
                here.call_soon_threadsafe(turned.set)

        self._loop.call_soon_threadsafe(tell)
        try:
            await asyncio.wait_for(turned.wait(), LONGEST_TURN_SECONDS)
        except TimeoutError:
            return (f"the event loop did not turn within {LONGEST_TURN_SECONDS:g} s: something blocks it",)
        return ()


def _text(status: HTTPStatus, lines: Sequence[str] = ()) -> Answer:
    return status, "text/plain; charset=utf-8", "".join(f"{line}\n" for line in (status.phrase, *lines)).encode()


class HealthServer:
    """Answers one GET per connection, all of them in one thread.

    Args:
        pages: the pages.
        names: allowed values of Host; None = any.
    """

    def __init__(self, pages: HealthPages, names: frozenset[str] | None) -> None:
        self._pages = pages
        self._names = names
        self._open: set[asyncio.Task[None]] = set()

    async def run(self, listening: socket.socket, stop: asyncio.Event) -> None:
        """Answer clients until `stop`; then close the remaining connections."""
        server = await asyncio.start_server(self._serve, sock=listening, limit=LONGEST_HEADER)
        await stop.wait()
        server.close()
        for exchange in self._open:
            exchange.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the request of a connection, and close it."""
        exchange = asyncio.current_task()
        if exchange is None or len(self._open) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._open.add(exchange)
        try:
            async with asyncio.timeout(EXCHANGE_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_message(*await self._answer(head.decode("latin-1"))))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except asyncio.CancelledError:
            writer.transport.abort()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self._open.discard(exchange)

    async def _answer(self, head: str) -> Answer:
        request, *fields = head.split("\r\n")
        words = request.split(" ")
        if len(words) != 3:
            return _text(HTTPStatus.BAD_REQUEST)
        if words[0] != "GET":
            return _text(HTTPStatus.METHOD_NOT_ALLOWED)
        if self._names is not None and not self._names.issuperset(_hosts(fields)):
            return _text(HTTPStatus.MISDIRECTED_REQUEST)
        return await self._pages.answer(words[1].partition("?")[0])


def _hosts(fields: Sequence[str]) -> set[str]:
    """Return the names of the Host fields; an impossible name when there is none."""
    pairs = (field.partition(":") for field in fields)
    return {name_of(value.strip()) for name, _, value in pairs if name.lower() == "host"} or {""}


def _message(status: HTTPStatus, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + body


@contextmanager
def serve_health(
    host: str,
    port: int | None,
    problems: Callable[[], Sequence[str]],
    remarks: Callable[[], Sequence[str]] = tuple,
) -> Iterator[None]:
    """Serve the pages of the service of this event loop while the context lasts; not at all without a port.

    Args:
        host: the address to listen on; a loopback address answers only to the names of this machine.
        port: the port to listen on.
        problems: returns why the process is not ready, one sentence each; called in another thread.
        remarks: returns what else `/readyz` says, likewise.

    Raises:
        InputUnusable: the address is taken, or we may not use it.
    """
    if port is None:
        yield
        return
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        message = f"APC_HEALTH_PORT {port} at APC_HEALTH_HOST {host} cannot be used: {error.strerror}"
        raise InputUnusable(message) from error
    pages = HealthPages(asyncio.get_running_loop(), problems, remarks)
    server = HealthServer(pages, LOOPBACK_NAMES if is_loopback(host) else None)
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.run(listening, stop),), daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()

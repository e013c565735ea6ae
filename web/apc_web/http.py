"""The HTTP server of all services: where it listens, its limits, and its checks of Host, Origin and content type.

Browsers let any page send requests to this machine: checking Host stops DNS rebinding, checking Origin stops other
pages, and a body must be JSON, which no foreign page can send without a preflight.
"""

import asyncio
import signal
import socket
import ssl
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from apc_bus.errors import TaskEnded
from apc_contracts.errors import InputUnusable
from apc_web.errors import ApiError
from apc_web.local_names import LOOPBACK_NAMES, is_loopback, name_of
from apc_web.problems import Refuses, as_problem


def listen_address(listen: str, name: str = "--listen") -> tuple[str, int]:
    """Return (host, port) of HOST:PORT; an IPv6 host may be in brackets.

    Raises InputUnusable, which calls the option or setting `name`.
    """
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not (host and port.isdecimal() and int(port) < 1 << 16):
        raise InputUnusable(f"{name} {listen!r}: write HOST:PORT")
    return host, int(port)


_BACKLOG = 2048


@contextmanager
def open_listeners(
    host: str, port: int, *, or_free_port: bool = False, name: str = "--listen"
) -> Iterator[list[socket.socket]]:
    """Yield a listening socket for each address of a host; leaving the context closes them.

    Args:
        host: a name or an address.
        port: the port; 0 takes a free one.
        or_free_port: take a free port where another process listens on this one.
        name: of the option or setting, for the error.

    Raises:
        InputUnusable: another process listens there, or the address is not one of this machine.
    """
    with ExitStack() as stack:
        try:
            listeners = _listeners(stack, host, port)
        except OSError as error:
            if not or_free_port:
                reason = str(error.strerror).partition(" (")[0]  # the rest repeats the address
                raise InputUnusable(f"{name} {host}:{port}: {reason}; name another port or address") from error
            listeners = _listeners(stack, host, 0)
        yield listeners


def _listeners(stack: ExitStack, host: str, port: int) -> list[socket.socket]:
    resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = dict.fromkeys((family, (str(address[0]), int(address[1]))) for family, *_, address in resolved)
    return [
        stack.enter_context(socket.create_server(address, family=family, backlog=_BACKLOG))
        for family, address in addresses
    ]


JSON = "application/json"
_BUSY = b"too many clients: come again\n"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of a service's clients."""

    connections: int = 128
    """Connections at the same time; further ones are told to come again, and closed."""
    connections_of_one_address: int | None = None
    """The same for one client; none = no other limit."""
    header_seconds: float = 10.0
    """Seconds from the beginning of a connection or request to the end of its header."""
    body_seconds: float = 30.0
    """Seconds from the end of the header to the end of the body."""
    write_seconds: float = 30.0
    """Seconds that a client may leave sent data unread."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """With what a server speaks TLS: PEM files."""

    certificate: Path
    key: Path
    clients: Path | None = None
    """Certificates of the authority of clients: who has a certificate of it may show it, and another one ends the
    connection. None = nobody is asked for one."""

    def check(self, settings: str) -> None:
        """Raise InputUnusable for a file that cannot be used: before a server listens, and naming its setting.

        Args:
            settings: what the names of the settings begin with, such as APC_WEB.
        """
        named = {f"{settings}_TLS_CERT": self.certificate, f"{settings}_TLS_KEY": self.key}
        authority = {} if self.clients is None else {f"{settings}_CLIENT_CA_FILE": self.clients}
        for name, file in {**named, **authority}.items():
            try:
                file.read_bytes()
            except OSError as error:
                raise InputUnusable(
                    f"{name}: {file}: {error.strerror}: name a PEM file that this user can read"
                ) from error
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            tls.load_cert_chain(self.certificate, self.key, lambda: "")  # else a key's password is asked for
        except (ssl.SSLError, ValueError) as error:
            both = " and ".join(f"{name} ({file})" for name, file in named.items())
            raise InputUnusable(
                f"{both} must be a certificate and its own key, in PEM, not encrypted: {error}"
            ) from error
        for name, file in authority.items():
            try:
                tls.load_verify_locations(file)
            except (ssl.SSLError, ValueError) as error:
                raise InputUnusable(f"{name}: {file}: name a file of certificates in PEM: {error}") from error


CLIENT_NAMES = "apc_client_names"
"""Key in the scope of a request: the common names of the certificate that the client has shown; none without one."""


def make_server(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    limits: HttpLimits | None = None,
    lifespan: bool = False,
    graceful_seconds: int = 15,
    hosts: Collection[str] = (),
    media_type: str | None = JSON,
    tls: TlsFiles | None = None,
    takes_signals: bool = True,
    refuses: Refuses = as_problem,
) -> "StoppableServer":
    """Return the server of an application; port 0 takes a free one.

    Args:
        app: answers the requests that pass the checks.
        host: the address to listen on; a loopback address answers only to the names of this machine.
        port: the port to listen on.
        limits: the clients' limits.
        lifespan: whether the application has startup and shutdown hooks.
        graceful_seconds: how long running requests may go on after SIGTERM; streams are cut then.
        hosts: further names that the server answers to, without ports; beyond loopback none = any.
        media_type: what bodies must be; none = anything.
        tls: speak TLS.
        takes_signals: whether SIGTERM and SIGINT end it; else its caller sets `should_exit`.
        refuses: makes the answer to a request that is refused before the application gets it.
    """
    names = frozenset(hosts) | (LOOPBACK_NAMES if is_loopback(host) else frozenset())
    config = uvicorn.Config(
        CheckedRequests(app, names or None, media_type, refuses),
        host=host,
        port=port,
        http=_bounded(limits or HttpLimits()),
        ws="none",
        log_config=None,
        lifespan="on" if lifespan else "off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=graceful_seconds,
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
        ssl_ca_certs=None if tls is None or tls.clients is None else str(tls.clients),
        ssl_cert_reqs=ssl.CERT_NONE if tls is None or tls.clients is None else ssl.CERT_OPTIONAL,
    )
    return StoppableServer(config, takes_signals=takes_signals)


class StoppableServer(uvicorn.Server):
    """Serves until SIGTERM, SIGINT or `should_exit`, then returns: uvicorn would raise the signal again and die of it.

    What its caller has opened is then closed, and the process ends with 0.

    Args:
        config: of the server.
        takes_signals: whether the signals are for it.
    """

    def __init__(self, config: uvicorn.Config, *, takes_signals: bool = True) -> None:
        super().__init__(config)
        self._takes_signals = takes_signals

    async def serve(self, sockets: "Sequence[socket.socket] | None" = None) -> None:
        """Serve. Raises TaskEnded when it ends without having been told to."""
        await super().serve(None if sockets is None else list(sockets))
        if not self.should_exit:
            raise TaskEnded("the HTTP server has ended without having been told to stop")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals that tell a service to stop; elsewhere than in the main thread there are none."""
        if not self._takes_signals or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class CheckedRequests:
    """Refuses requests that a foreign page makes a browser send, and bodies of another type.

    Args:
        app: receives the requests that pass.
        hosts: allowed values of Host; None = any, where a token decides.
        media_type: of a body; None = any, where no page can send the method without asking first.
        refuses: makes the answer to one that is refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: frozenset[str] | None,
        media_type: str | None = JSON,
        refuses: Refuses = as_problem,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._media_type = media_type
        self._refuses = refuses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        error = self._error(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
            return
        refusal = self._refuses(scope, error)
        refusal.headers["Connection"] = "close"
        await refusal(scope, receive, send)

    def _error(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        named = headers.getlist("host")
        if len(named) != 1 or (self._hosts is not None and name_of(named[0]) not in self._hosts):
            return ApiError(421, "WRONG_HOST", "this service does not answer to that name", "Host")
        own = {f"http://{named[0].lower()}", f"https://{named[0].lower()}"}
        origins = headers.getlist("origin")
        if len(origins) > 1 or not own.issuperset(origin.lower() for origin in origins):
            return ApiError(403, "WRONG_ORIGIN", "pages of another origin may not ask", "Origin")
        wanted = self._media_type
        if wanted is not None and _has_body(headers) and _media_types(headers) != {wanted}:
            return ApiError(415, "NOT_JSON", f"send Content-Type: {wanted}", "Content-Type")
        return None


def _media_types(headers: Headers) -> set[str]:
    return {given.partition(";")[0].strip().lower() for given in headers.getlist("content-type")}


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _naming_client(app: ASGIApp, transport: asyncio.Transport) -> ASGIApp:
    """Return the application with the names of the client's certificate, which the handshake has verified."""
    subject = (transport.get_extra_info("peercert") or {}).get("subject", ())
    names = tuple(value for part in subject for key, value in part if key == "commonName")

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, CLIENT_NAMES: names}, receive, send)

    return named if names else app


def _bounded(limits: HttpLimits) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with these limits: uvicorn itself creates one per connection."""

    class Bounded(BoundedProtocol):
        http_limits = limits

    return Bounded


class BoundedProtocol(H11Protocol):
    """A connection that is closed when its client is slow, does not read, or is one too many."""

    http_limits = HttpLimits()
    _receiving: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and begin to wait for its first request."""
        super().connection_made(transport)
        self.app = _naming_client(self.app, transport)
        if self._is_one_too_many:
            head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(_BUSY)}\r\nConnection: close\r\n\r\n"
            transport.write(head.encode() + _BUSY)
            transport.close()
        else:
            self._wait_for_header()

    @property
    def _is_one_too_many(self) -> bool:
        limits, address = self.http_limits, self.client[0] if self.client else None
        if len(self.connections) > limits.connections:
            return True
        if limits.connections_of_one_address is None or address is None:
            return False
        others = (getattr(one, "client", None) for one in self.connections)
        here = sum(1 for other in others if other is not None and other[0] == address)
        return here > limits.connections_of_one_address

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        self._stop_receiving()
        self._stop_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass on received data, and set the limit for what is still to come."""
        if self._receiving is None and self._is_between_requests:
            self._wait_for_header()
        before = self.cycle
        super().data_received(data)
        self._follow(before)

    def on_response_complete(self) -> None:
        """Continue with what the client has sent after the request."""
        before = self.cycle
        super().on_response_complete()
        self._follow(before)

    def pause_writing(self) -> None:
        """Give the client some time to read."""
        self.flow.pause_writing()
        self._writing = self.loop.call_later(self.http_limits.write_seconds, self._cut)

    def resume_writing(self) -> None:
        """Resume: the client has read."""
        self._stop_writing()
        self.flow.resume_writing()

    def _follow(self, before: object) -> None:
        """Set the limit for the rest of the running request."""
        if self._is_between_requests:
            return
        if not self.cycle.more_body:
            self._stop_receiving()
        elif self.cycle is not before:
            self._wait(self.http_limits.body_seconds)

    @property
    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_header(self) -> None:
        self._wait(self.http_limits.header_seconds)

    def _wait(self, seconds: float) -> None:
        self._stop_receiving()
        self._receiving = self.loop.call_later(seconds, self._cut)

    def _cut(self) -> None:
        self.transport.abort()

    def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

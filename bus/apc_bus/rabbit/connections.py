"""Connections to a list of broker nodes: shuffled, with back-off and jitter, every wait bounded.

aio-pika's robust connection knows one address; here a lost node is replaced by the next one, and anyone who used
the connection is told, never silently resumed.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

import aiormq
import structlog
from aiormq.exceptions import (
    AMQPConnectionError,
    AMQPError,
    ConnectionNotAllowed,
    InvalidFrameError,
    ProbableAuthenticationError,
)
from yarl import URL

from apc_bus.backoff import Backoff
from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.errors import BusUnavailable
from apc_bus.rabbit.transport import ListeningTransport, Silence, Taker
from apc_bus.tls import tls_problem

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0

_log = structlog.get_logger("apc_bus")


@dataclass(frozen=True, slots=True)
class Timing:
    """How long to wait for the broker, in seconds."""

    heartbeat: float = 5.0
    connect: float = 5.0
    """Limit of one connection attempt to one node."""
    patience: float = 8.0
    """For a connection to any node; then BusUnavailable."""
    answer: float = 10.0
    """For an answer or a confirm."""


class Nodes:
    """The broker's nodes, one set of credentials.

    Raises:
        BusUnavailable: no URL, or one that cannot be read.
    """

    def __init__(self, urls: Sequence[str], timing: Timing) -> None:
        if not urls:
            raise BusUnavailable("no broker is given: set APC_AMQP_URL")
        self._urls = [_with_heartbeat(url, timing.heartbeat) for url in urls]
        self.timing = timing

    @property
    def user(self) -> str:
        """The broker user of the URLs."""
        return self._urls[0].user or "guest"

    @property
    def scope(self) -> str:
        """The addresses of the nodes and the virtual host, without credentials."""
        return " ".join(sorted(f"{url.host}:{url.port}{url.path}" for url in self._urls))

    def shuffled(self) -> list[URL]:
        """Return the nodes in a new random order."""
        return random.sample(self._urls, len(self._urls))

    async def connect(self, purpose: str) -> "Link":
        """Return a connection to the first node that answers.

        Args:
            purpose: the connection's name in the broker's listings.

        Raises:
            BusUnavailable: no node answered in time, or one refused the credentials or the virtual host.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timing.patience
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            problems, lasting = [], 0
            for url in self.shuffled():
                try:
                    return await self._connect_to(url, purpose)
                except _TlsFailed as error:
                    problems.append(f"{url.host}:{url.port} {error}")
                    lasting += 1
                except (AMQPConnectionError, OSError, TimeoutError) as error:
                    problems.append(f"{url.host}:{url.port} {str(error) or type(error).__name__}")
            if lasting == len(problems):
                raise BusUnavailable(f"no broker node can be reached with TLS: {'; '.join(problems)}")
            if loop.time() + backoff.pause > deadline:
                raise BusUnavailable(
                    f"no broker node answers ({'; '.join(problems)}): start RabbitMQ or check APC_AMQP_URL"
                )
            _log.warning("broker_awaited", problems=problems)
            await backoff.wait()

    async def _connect_to(self, url: URL, purpose: str) -> "Link":
        transport = ListeningTransport()
        connection = _Connection(url.update_query(name=purpose), transport_factory=transport)
        try:
            with unasked_cancel_fails():
                async with asyncio.timeout(self.timing.connect):
                    await connection.connect()
        except ProbableAuthenticationError as error:
            raise BusUnavailable(
                f"{url.host}:{url.port} refuses user {url.user!r} or its password: check APC_AMQP_URL"
            ) from error
        except (ConnectionNotAllowed, InvalidFrameError) as error:
            # Measured: a virtual host that is absent or not granted arrives as an unexpected frame.
            raise BusUnavailable(
                f"user {url.user!r} may not use virtual host {connection.vhost!r} of {url.host}:{url.port}, "
                "or there is none of that name: check APC_AMQP_URL and the user's permissions"
            ) from error
        except (AMQPConnectionError, OSError) as error:
            if problem := tls_problem(error, "APC_AMQP"):
                raise _TlsFailed(problem) from error
            raise
        return Link(connection, transport)


class _TlsFailed(Exception):
    """A node that is there, and with which TLS does not come about: waiting does not mend it."""


class _Connection(aiormq.Connection):
    # aiormq waits for three heartbeats and their intervals, 18 s at 5 s; a frozen node is to be left sooner.
    HEARTBEAT_GRACE_MULTIPLIER = 2


class Link:
    """One live connection."""

    def __init__(self, connection: aiormq.Connection, transport: ListeningTransport) -> None:
        self.connection = connection
        self._transport = transport
        self.is_suspect = False
        """The broker did not answer on it in time: it is not used again."""

    @property
    def blocked(self) -> str | None:
        """Why the broker takes nothing from this connection now, None = it does.

        It says so to those that publish, while memory or disk run out; what comes from it still comes.
        """
        return self._transport.splitter.blocked

    @property
    def is_alive(self) -> bool:
        """Whether the connection can be used. After a forced close trust the exception, not this."""
        return self.connection.is_opened

    def add_taker(self, channel: int, taker: Taker) -> None:
        """Let a channel take its messages and confirms directly (`splitting`)."""
        self._transport.splitter.add(channel, taker)

    def watch(self) -> Silence:
        """Start to measure the broker's silence; end it with `unwatch`."""
        silence = Silence()
        self._transport.silences.add(silence)
        return silence

    def unwatch(self, silence: Silence) -> None:
        """Stop measuring."""
        self._transport.silences.discard(silence)

    async def close(self, patience: float) -> None:
        """Close it; never raises, never waits longer than `patience` seconds."""
        try:
            with unasked_cancel_fails():
                async with asyncio.timeout(patience):
                    await self.connection.close()
        except (AMQPError, OSError, RuntimeError, TimeoutError) as error:
            _log.info("connection_close_failed", reason=repr(error))
        finally:
            # A peer that does not answer a close may still hold what it handed over: a cut is what it notices.
            self._transport.abort()


class SharedLink:
    """A connection that is opened when first needed and again when it is lost."""

    def __init__(self, nodes: Nodes, purpose: str) -> None:
        self._nodes = nodes
        self._purpose = purpose
        self._link: Link | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def get(self) -> Link:
        """Return the live connection. Raises BusUnavailable."""
        async with self._lock:
            if self._is_closed:
                raise BusUnavailable("this bus is closed")
            if self._link is not None and self._link.is_suspect:
                await self.drop()
            if self._link is None or not self._link.is_alive:
                self._link = await self._nodes.connect(self._purpose)
            return self._link

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that can be used."""
        return self._link is not None and self._link.is_alive

    @property
    def blocked(self) -> str | None:
        """Why the broker takes nothing from the connection now; None = it does, or there is none."""
        return self._link.blocked if self._link is not None and self._link.is_alive else None

    async def drop(self) -> None:
        """Close the connection; the next `get` opens another, perhaps at another node."""
        link, self._link = self._link, None
        if link is not None:
            await link.close(self._nodes.timing.connect)

    async def close(self) -> None:
        """Close permanently; idempotent."""
        self._is_closed = True
        await self.drop()


def _with_heartbeat(text: str, heartbeat: float) -> URL:
    try:
        url = URL(text)
        if url.scheme not in ("amqp", "amqps") or not url.host:
            raise ValueError("it must be amqp://user:password@host/virtual-host")
    except ValueError as error:
        raise BusUnavailable(f"an AMQP URL cannot be read: {error}") from error
    port = url.port or (5671 if url.scheme == "amqps" else 5672)
    return url.with_port(port).update_query(heartbeat=str(round(heartbeat)))

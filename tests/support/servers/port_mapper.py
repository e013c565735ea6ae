"""Erlang's port mapper, private to the nodes of one test: they find each other, and nobody else's."""

import secrets
import shutil
import subprocess

from tests.support.servers.ports import free_ports

from apc_bus.errors import BusUnavailable


class PortMapper:
    """An epmd of our own, and the cookie of the nodes that register with it.

    Attributes:
        port: where it listens, on 127.0.0.1.
        cookie: the secret of the nodes; those with the same one may be a cluster.

    Raises:
        BusUnavailable: Erlang is not installed.
    """

    def __init__(self) -> None:
        command = shutil.which("epmd")
        if command is None:
            raise BusUnavailable("RabbitMQ is not installed: install rabbitmq-server, or set APC_AMQP_URL")
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        (self.port,) = free_ports(1)
        self.cookie = secrets.token_hex(16)

    def start(self) -> None:
        """Start it, unless it runs; nodes wait for its port themselves."""
        if self._process is None:
            self._process = subprocess.Popen(
                [self._command, "-port", str(self.port), "-address", "127.0.0.1"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def stop(self) -> None:
        """Stop it; idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

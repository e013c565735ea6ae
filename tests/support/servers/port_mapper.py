"""Erlang's port mapper, private to the nodes of one test: they find each other, and nobody else's."""

import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.servers.folders import make_server_folder
from tests.support.servers.ports import free_ports

from apc_bus.errors import BusUnavailable

LOOPBACK = "127.0.0.1"


class PortMapper:
    """An epmd of our own, and the cookie of the nodes that register with it.

    Args:
        addresses: of the nodes, where they have other ones than 127.0.0.1.

    Attributes:
        port: where it listens, on 127.0.0.1 and on these addresses.
        cookie: the secret of the nodes; those with the same one may be a cluster.

    Raises:
        BusUnavailable: Erlang is not installed.
    """

    def __init__(self, addresses: Sequence[str] = ()) -> None:
        command = shutil.which("epmd")
        if command is None:
            raise BusUnavailable("RabbitMQ is not installed: install rabbitmq-server, or set APC_AMQP_URL")
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._addresses = (LOOPBACK, *addresses)
        self._folder: Path | None = None
        (self.port,) = free_ports(1)
        self.cookie = secrets.token_hex(16)

    @property
    def environment(self) -> dict[str, str]:
        """What a node, and a command for one, needs in order to find the other nodes."""
        found = {"ERL_EPMD_PORT": str(self.port), "ERL_EPMD_ADDRESS": LOOPBACK}
        own = [address for address in self._addresses if address != LOOPBACK]
        if not own:
            return found
        if self._folder is None:
            self._folder = make_server_folder("apc-epmd-")
            hosts = [f'{{host, {{{address.replace(".", ",")}}}, ["{host_of(address)}"]}}.\n' for address in own]
            (self._folder / "hosts").write_text("".join(hosts) + "{lookup, [file, native]}.\n")
        return found | {"ERL_INETRC": str(self._folder / "hosts")}

    def start(self) -> None:
        """Start it, unless it runs; nodes wait for its port themselves."""
        if self._process is None:
            self._process = subprocess.Popen(
                [self._command, "-port", str(self.port), "-address", ",".join(self._addresses)],
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
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def host_of(address: str) -> str:
    """Return the name by which nodes know the host of a loopback address."""
    return "localhost" if address == LOOPBACK else f"host-{address.replace('.', '-')}"

"""A RabbitMQ node of our own, from the installed package: own folder, cookie, ports and epmd.

It touches no other node of the machine, runs as root and as a normal user, and everything it starts is
stopped by process id. Blocking calls: from async code use `asyncio.to_thread`.
"""

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from tests.support.servers.folders import make_server_folder
from tests.support.servers.node_control import PATIENCE_SECONDS, NodeControl
from tests.support.servers.port_mapper import LOOPBACK, PortMapper, host_of
from tests.support.servers.ports import free_ports

from apc_bus.errors import BusUnavailable

_STOP_SECONDS = 30.0
_STARTUP_SECONDS, _STARTUP_ATTEMPTS = "10", 9
"""Asked again: a call that comes in the moment in which the node gets up is never answered (measured with 3.10)."""


def find_scripts() -> Path | None:
    """Return the folder with RabbitMQ's inner scripts, or None.

    The command on the PATH may be a wrapper that switches to the user rabbitmq; it is not for this.
    """
    candidates: list[Path] = []
    if on_path := shutil.which("rabbitmq-server"):
        candidates.append(Path(on_path).resolve().parent)
    for pattern in ("usr/lib/rabbitmq/lib/*/sbin", "opt/rabbitmq*/sbin", "usr/local/opt/rabbitmq/sbin"):
        candidates.extend(sorted(Path("/").glob(pattern), reverse=True))
    return next((folder for folder in candidates if (folder / "rabbitmq-env").exists()), None)


class PrivateNode:
    """A single broker node on a loopback address that a test may stop, kill and start again; its data stay.

    Args:
        config: lines for rabbitmq.conf.
        advanced: the Erlang terms of advanced.config, for what rabbitmq.conf has no key for.
        plugins: names of plugins that come with the package, `rabbitmq_management` for one.
        mapper: shared by the nodes of a cluster, and stopped by its owner; default a new one.
        address: of the loopback network. What it says to other nodes comes from this address too, so that a packet
            filter can tell the nodes of a cluster apart.

    Attributes:
        control: its commands, for other processes too.

    Raises:
        BusUnavailable: RabbitMQ is not installed, or it does not start.
    """

    def __init__(
        self,
        config: str = "",
        plugins: Iterable[str] = (),
        mapper: PortMapper | None = None,
        advanced: str = "[].",
        address: str = LOOPBACK,
    ) -> None:
        scripts = find_scripts()
        if scripts is None:
            raise BusUnavailable("RabbitMQ is not installed: install rabbitmq-server, or set APC_AMQP_URL")
        self._scripts = scripts
        self._mapper = mapper or PortMapper()
        self._owns_mapper = mapper is None
        self._folder = make_server_folder("apc-rabbit-")
        self.port, distribution_port = free_ports(2)
        self.address = address
        self.name = f"apc-{secrets.token_hex(4)}@{host_of(address)}"
        self.control = NodeControl(str(scripts), self.name, self._prepare(config, advanced, plugins, distribution_port))
        self._server: subprocess.Popen[bytes] | None = None

    def url(self, vhost: str = "/", user: str = "guest", password: str = "guest") -> str:
        """Return an AMQP URL of this node."""
        path = "" if vhost == "/" else vhost
        return f"amqp://{user}:{password}@{self.address}:{self.port}/{path}"

    @property
    def logs(self) -> Path:
        """The folder of its log files; gone after `close`."""
        return self._folder / "log"

    def start(self) -> Self:
        """Start it, or start it again, and wait until it answers."""
        self._mapper.start()
        self._await_port(LOOPBACK, self._mapper.port)
        with (self._folder / "output.log").open("ab") as output:
            self._server = subprocess.Popen(
                [self._scripts / "rabbitmq-server"],
                env=self.control.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._await_port(self.address, self.port)
        self.await_startup()
        return self

    def await_startup(self) -> None:
        """Wait until it is up. Raises BusUnavailable."""
        for _ in range(_STARTUP_ATTEMPTS - 1):
            try:
                self.ctl("await_startup", "--timeout", _STARTUP_SECONDS)
                return
            except BusUnavailable:
                continue
        self.ctl("await_startup", "--timeout", _STARTUP_SECONDS)

    def stop(self) -> None:
        """Shut it down cleanly; its data stay. Idempotent."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                if process.name().startswith("beam"):
                    process.terminate()
        self._reap(_STOP_SECONDS)

    def kill(self) -> None:
        """Kill it with SIGKILL, as a power cut would; its data stay."""
        self._reap(0)

    def suspend(self) -> None:
        """Freeze it (SIGSTOP)."""
        for process in self._processes():
            process.suspend()

    def resume(self) -> None:
        """Let a frozen node go on (SIGCONT)."""
        for process in self._processes():
            process.resume()

    def close(self) -> None:
        """Stop everything and delete the folder."""
        self.resume()
        self.stop()
        if self._owns_mapper:
            self._mapper.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl against this node; returns what it prints.

        Raises:
            BusUnavailable: the command failed, or did not end; the message holds its output.
        """
        return self.control.ctl(*arguments)

    def queues(self, *arguments: str) -> str:
        """Run rabbitmq-queues against this node; raises as `ctl`."""
        return self.control.run("rabbitmq-queues", *arguments)

    def streams(self, *arguments: str) -> str:
        """Run rabbitmq-streams against this node; raises as `ctl`."""
        return self.control.run("rabbitmq-streams", *arguments)

    def log(self) -> str:
        """Return what the node has written into its log."""
        return "".join(file.read_text(errors="replace") for file in (self._folder / "log").glob(f"{self.name}.log"))

    def add_vhosts(self, names: Iterable[str]) -> None:
        """Make virtual hosts in one call; the user guest gets every right there."""
        self.control.change_vhosts((), names)

    def close_connections(self) -> None:
        """Close every client connection by force, as a revocation does."""
        # Not `close_all_connections`: it goes by a list that was seen empty after a restart of the node.
        self.ctl("eval", '[rabbit_networking:close_connection(C, "forced") || C <- rabbit_networking:connections()].')

    def persist_declarations(self) -> None:
        """Have queues that were just declared survive a kill.

        Measured with 3.10: the metadata of queues made in the last few seconds is in memory only; killed then,
        the node comes back with queues that never elect a leader, and every publish to them stays unconfirmed.
        """
        self.ctl("eval", "[dets:sync(Table) || Table <- dets:all()].")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self, config: str, advanced: str, plugins: Iterable[str], distribution_port: int) -> dict[str, str]:
        home = self._folder / "home"
        home.mkdir()
        cookie = home / ".erlang.cookie"
        cookie.write_text(self._mapper.cookie)
        cookie.chmod(0o400)
        (self._folder / "enabled_plugins").write_text(f"[{','.join(plugins)}].")
        (self._folder / "rabbitmq.conf").write_text(config + "\n")
        (self._folder / "advanced.config").write_text(advanced)
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": self.address,
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_MNESIA_BASE": str(self._folder / "data"),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(self._folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self._folder / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            # Few schedulers and no busy waiting: the node shares the machine with the tests.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"+S 2:2 +sbwt none{self._distribution()}",
        } | self._mapper.environment

    def _distribution(self) -> str:
        """Return the options by which it speaks to other nodes from its own address."""
        if self.address == LOOPBACK:
            return ""
        erlang = "{" + self.address.replace(".", ",") + "}"
        return f" -kernel inet_dist_use_interface {erlang} -kernel inet_dist_connect_options [{{ip,{erlang}}}]"

    def _processes(self) -> list[psutil.Process]:
        if self._server is None:
            return []
        try:
            server = psutil.Process(self._server.pid)
            return [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _reap(self, patience_seconds: float) -> None:
        if self._server is None:
            return
        _, alive = psutil.wait_procs(self._processes(), timeout=patience_seconds)
        for process in alive:
            with suppress(psutil.NoSuchProcess):  # its parent may have taken it along
                process.kill()
        psutil.wait_procs(alive, timeout=_STOP_SECONDS)
        self._server.wait()
        self._server = None

    def _await_port(self, address: str, port: int) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                socket.create_connection((address, port), 1).close()
                return
            except OSError:
                if self._server is not None and self._server.poll() is not None:
                    break
                time.sleep(0.1)
        output = self._folder / "output.log"
        last_words = output.read_text(errors="replace")[-2000:] if output.exists() else ""
        raise BusUnavailable(f"the private RabbitMQ node did not start: {last_words}")

"""Which RabbitMQ the tests run on, and its own virtual host for each test."""

import os
import secrets
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from tests.support.servers.containers import containers_asked, docker_answers, run_container
from tests.support.servers.node_control import vhost_changes
from tests.support.servers.private_node import PrivateNode, find_scripts

from apc_bus.errors import BusUnavailable

_IMAGE = "rabbitmq:4-management"
_VHOSTS_AT_ONCE = 8
ChangeVhosts = Callable[[Sequence[str], Sequence[str]], None]
"""Is given the names that go and those that come."""
Choice = Literal["container", "APC_AMQP_URL", "private node"]


class RabbitServer:
    """A broker that hands out fresh virtual hosts.

    Args:
        description: for the report of the test run.
        url: AMQP URL; its path is replaced by the virtual host.
        change_vhosts: deletes some virtual hosts and makes others, on which the URL's user has every right.
        ctl: runs rabbitmqctl.
    """

    def __init__(
        self, description: str, url: str, change_vhosts: ChangeVhosts, ctl: Callable[..., object], resources: ExitStack
    ) -> None:
        self.description = description
        self.ctl = ctl
        self._url = url
        self._change_vhosts = change_vhosts
        self._resources = resources
        self._fresh: list[str] = []
        self._used: list[str] = []

    def fresh_vhost_url(self) -> str:
        """Return the URL of a virtual host that nobody has used."""
        if not self._fresh:
            used, self._used = self._used, []
            new = [f"apc-test-{secrets.token_hex(6)}" for _ in range(_VHOSTS_AT_ONCE)]
            self._change_vhosts(used, new)
            self._fresh = new
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{self._fresh.pop()}"))

    def give_back(self, url: str) -> None:
        """Delete a virtual host that was handed out, when the next ones are made: its queues cost time all along."""
        self._used.append(urlsplit(url).path.removeprefix("/"))

    def close(self) -> None:
        """Stop or clean what was started or made."""
        self._resources.close()


def rabbit_choice() -> Choice | None:
    """Return a container if APC_TEST_CONTAINERS asks for one; else what this machine has; else a container.

    What it has is APC_AMQP_URL if rabbitmqctl works there, or a private node of the installed server.
    """
    if containers_asked():
        return "container"
    if os.environ.get("APC_AMQP_URL") and _ctl_answers():
        return "APC_AMQP_URL"
    if find_scripts() is not None:
        return "private node"
    return "container" if docker_answers() else None


def start_rabbit() -> RabbitServer:
    """Start or reach the broker of `rabbit_choice`.

    Raises:
        BusUnavailable: there is none, or it does not start.
    """
    match rabbit_choice():
        case "container":
            return container_rabbit()
        case "APC_AMQP_URL":
            return _from_url(os.environ["APC_AMQP_URL"].split(",")[0].strip())
        case "private node":
            return _from_private_node()
        case None:
            raise BusUnavailable(
                "the tests need a RabbitMQ: start Docker, install rabbitmq-server, or set APC_AMQP_URL"
            )


def _from_private_node() -> RabbitServer:
    with ExitStack() as resources:
        node = PrivateNode()
        resources.callback(node.close)
        node.start()
        return RabbitServer(
            "private node", node.url(), node.control.change_vhosts, node.control.ctl, resources.pop_all()
        )


def _from_url(url: str) -> RabbitServer:
    return _by_ctl("APC_AMQP_URL", url, _ctl, ExitStack())


def container_rabbit() -> RabbitServer:
    """Start a broker in a container. Raises BusUnavailable."""
    account = {"RABBITMQ_DEFAULT_USER": "guest", "RABBITMQ_DEFAULT_PASS": "guest"}
    with ExitStack() as resources:
        container, place = resources.enter_context(run_container(_IMAGE, 5672, "Server startup complete", **account))

        def ctl(*arguments: str) -> None:
            done = container.exec(["rabbitmqctl", *arguments])
            if done.exit_code != 0:
                raise BusUnavailable(f"rabbitmqctl {arguments[0]} failed: {done.output.decode(errors='replace')}")

        return _by_ctl(f"container, {_IMAGE}", f"amqp://guest:guest@{place}/", ctl, resources.pop_all())


def _by_ctl(description: str, url: str, ctl: Callable[..., None], resources: ExitStack) -> RabbitServer:
    user = urlsplit(url).username or "guest"
    there: set[str] = set()

    def change_vhosts(gone: Sequence[str], new: Sequence[str]) -> None:
        if gone or new:
            ctl("eval", vhost_changes(gone, new, user))
        there.difference_update(gone)
        there.update(new)

    resources.callback(lambda: change_vhosts(sorted(there), ()))
    return RabbitServer(description, url, change_vhosts, ctl, resources)


def _ctl(*arguments: str) -> None:
    subprocess.run(["rabbitmqctl", "--quiet", *arguments], check=True, capture_output=True, timeout=60)


def _ctl_answers() -> bool:
    try:
        _ctl("list_vhosts")
    except (OSError, subprocess.SubprocessError):
        return False
    return True

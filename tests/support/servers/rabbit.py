"""Which RabbitMQ the tests run on, and its own virtual host for each test."""

import os
import secrets
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from tests.support.servers.containers import containers_asked, docker_answers, run_container
from tests.support.servers.private_node import PrivateNode, find_scripts

from apc_bus.errors import BusUnavailable

_IMAGE = "rabbitmq:4-management"
_VHOSTS_AT_ONCE = 8
Choice = Literal["container", "APC_AMQP_URL", "private node"]


class RabbitServer:
    """A broker that hands out fresh virtual hosts.

    Args:
        description: for the report of the test run.
        url: AMQP URL; its path is replaced by the virtual host.
        add_vhosts: makes virtual hosts on which the URL's user has every right.
    """

    def __init__(
        self, description: str, url: str, add_vhosts: Callable[[list[str]], None], resources: ExitStack
    ) -> None:
        self.description = description
        self._url = url
        self._add_vhosts = add_vhosts
        self._resources = resources
        self._fresh: list[str] = []

    def fresh_vhost_url(self) -> str:
        """Return the URL of a virtual host that nobody has used."""
        if not self._fresh:
            self._fresh = [f"apc-test-{secrets.token_hex(6)}" for _ in range(_VHOSTS_AT_ONCE)]
            self._add_vhosts(self._fresh)
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{self._fresh.pop()}"))

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
            return _from_container()
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
            f"private node, RabbitMQ {node.ctl('version')}", node.url(), node.add_vhosts, resources.pop_all()
        )


def _from_url(url: str) -> RabbitServer:
    user = urlsplit(url).username or "guest"
    resources = ExitStack()

    def add_vhosts(names: list[str]) -> None:
        for name in names:
            _ctl("add_vhost", name)
            resources.callback(_ctl, "delete_vhost", name)
            _ctl("set_permissions", "-p", name, user, ".*", ".*", ".*")

    return RabbitServer("APC_AMQP_URL", url, add_vhosts, resources)


def _from_container() -> RabbitServer:
    account = {"RABBITMQ_DEFAULT_USER": "guest", "RABBITMQ_DEFAULT_PASS": "guest"}
    with ExitStack() as resources:
        container, place = resources.enter_context(run_container(_IMAGE, 5672, "Server startup complete", **account))

        def ctl(*arguments: str) -> None:
            done = container.exec(["rabbitmqctl", *arguments])
            if done.exit_code != 0:
                raise BusUnavailable(f"rabbitmqctl {arguments[0]} failed: {done.output.decode(errors='replace')}")

        def add_vhosts(names: list[str]) -> None:
            for name in names:
                ctl("add_vhost", name)
                ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")

        return RabbitServer(f"container, {_IMAGE}", f"amqp://guest:guest@{place}/", add_vhosts, resources.pop_all())


def _ctl(*arguments: str) -> None:
    subprocess.run(["rabbitmqctl", "--quiet", *arguments], check=True, capture_output=True, timeout=60)


def _ctl_answers() -> bool:
    try:
        _ctl("list_vhosts")
    except (OSError, subprocess.SubprocessError):
        return False
    return True

"""Servers for tests from a Docker engine, by testcontainers' core.

Its modules for RabbitMQ and Postgres are not used: importing them warns, and tests take warnings for errors.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from apc_bus.errors import BusUnavailable

_START_SECONDS = 300.0
_ANSWER_SECONDS = 60.0


def containers_asked() -> bool:
    """Return whether the tests shall run on containers whatever this machine has (APC_TEST_CONTAINERS=1)."""
    return os.environ.get("APC_TEST_CONTAINERS", "") not in ("", "0")


def docker_answers() -> bool:
    """Return whether a Docker engine answers, at DOCKER_HOST or at its usual place."""
    command = shutil.which("docker")
    if command is None:
        return False
    try:
        return subprocess.run([command, "info"], capture_output=True, timeout=_ANSWER_SECONDS).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@contextmanager
def run_container(image: str, port: int, ready: str, **variables: str) -> Iterator[tuple[Any, str]]:
    """Run a container until the context ends; give it and the `host:port` at which its port answers.

    Args:
        image: with its tag.
        port: inside the container.
        ready: a pattern of the log line after which the server answers.
        variables: the container's environment.

    Raises:
        BusUnavailable: no Docker engine answers.
    """
    if not docker_answers():
        raise BusUnavailable(f"no Docker engine answers for {image}: start one, or unset APC_TEST_CONTAINERS")
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    wait = LogMessageWaitStrategy(ready).with_startup_timeout(int(_START_SECONDS))
    container = DockerContainer(image).with_envs(**variables).with_exposed_ports(port).waiting_for(wait)
    try:  # not its own context: that leaves a container behind whose start was too slow
        container.start()
        yield container, f"{container.get_container_host_ip()}:{container.get_exposed_port(port)}"
    finally:
        container.stop()

"""deploy/cluster: three brokers that share a secret, open to this machine alone."""

from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
FILE = DEPLOY / "cluster/docker-compose.yml"


@pytest.fixture
def services() -> dict[str, dict[str, Any]]:
    """The services by their name."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text())["services"]
    return found


def test_every_node_is_looked_for_by_the_others(services: dict[str, dict[str, Any]]) -> None:
    lines = (DEPLOY / "cluster/cluster.conf").read_text().splitlines()
    named = {line.rpartition("rabbit@")[2] for line in lines if ".nodes." in line}
    assert named == services.keys() == {one["hostname"] for one in services.values()}
    assert not any("depends_on" in one for one in services.values()), "each waits for the others at its first start"


def test_nobody_beyond_this_machine_reaches_a_node(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        published = {port.rpartition(":")[2] for port in service["ports"]}
        assert published == {"5672", "15672"}, "neither the port mapper nor what nodes say to each other"


def test_no_secret_has_a_default(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        secret = service["environment"]
        assert secret.keys() == {"RABBITMQ_ERLANG_COOKIE", "RABBITMQ_DEFAULT_USER", "RABBITMQ_DEFAULT_PASS"}
        assert all(value.startswith("${") and ":?" in value for value in secret.values())


def test_every_node_has_limits_and_the_files_that_ship(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        assert service["mem_limit"] and service["pids_limit"]
        mounted = [volume.split(":")[0] for volume in service["volumes"] if volume.startswith(".")]
        assert len(mounted) == 3 and all((FILE.parent / path).is_file() for path in mounted)
        assert all(volume.endswith(":ro") for volume in service["volumes"] if volume.startswith("."))

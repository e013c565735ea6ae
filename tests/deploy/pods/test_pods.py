"""A team of `apc new` in the chart's pods: results are read, pods crash, and a pod reads only its own secrets."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.compose.test_containers import READ_KEY, WRITE
from tests.support.web.console_client import ConsoleClient

from .conftest import CONSOLE_PORT, PASSWORD, Release
from .kube import podman

DRAFT = {"text": "  the bus   keeps what was said"}
RESULT = {"text": "The bus keeps what was said", "edited": True}
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


def begin(release: Release, key: str) -> str:
    """Start a session; return its id."""
    line = ("session", "start", "my_team.team:team", "--input", "-", "--key", key)
    said = release.operate(*line, stdin=json.dumps(DRAFT))
    return said.split()[-1]


def result_of(release: Release, session: str) -> Any:
    """Wait for the result of a session."""
    return json.loads(release.operate("session", "result", session))["result"]["content"]


async def test_the_result_of_a_session_is_read_also_when_a_pod_crashes(release: Release) -> None:
    added = ("--role", "operator", "--swarm", "operators", "--rights", "operate", "--broker-user", "operator")
    release.operate("agent", "add", "operator", *added)

    assert result_of(release, begin(release, "one")) == RESULT

    podman("pod", "stop", "--time", "10", "apc-editor-pod")  # so that the session waits
    session = begin(release, "two")
    gate = release.pods.crash("apc-gate")
    release.figures["seconds until a gate that crashed runs again"] = gate
    podman("pod", "start", "apc-editor-pod")
    assert result_of(release, session) == RESULT
    release.figures["seconds until a worker that crashed runs again"] = release.pods.crash("apc-writer")
    await release.pods.wait("apc-writer")
    assert result_of(release, begin(release, "three")) == RESULT

    podman("exec", release.pods.container("apc-log-writer"), "apc", "log", "verify")


async def test_a_person_logs_in_to_the_console_and_acts(release: Release) -> None:
    release.operate("agent", "add", "admin", "--person", "--role", "operator", "--rights", "operate", "--via", "web")
    console = ConsoleClient(CONSOLE_PORT, release.certificate)
    console.log_in("admin", PASSWORD)

    podman("pod", "stop", "--time", "10", "apc-editor-pod")
    session = begin(release, "four")
    paused = console.ask("POST", f"/sessions/{session}/pause", {"reason": "a look"})
    assert paused["detail"]["state"].startswith("paused in")
    console.ask("POST", f"/sessions/{session}/resume", {"reason": "go on"})
    podman("pod", "start", "apc-editor-pod")
    assert result_of(release, session) == RESULT


async def test_a_pod_reads_its_own_secrets_alone_and_writes_none(release: Release) -> None:
    key = "/etc/apc/log-key/log-key.pem"
    assert "PRIVATE KEY" in release.pods.inside("apc-log-writer", READ_KEY, key), "unguarded: the pod that has it"
    own = "import os; print(*sorted(name for name in os.listdir('/run/secrets') if not name.startswith('.')))"
    paths = ["/agents/my_team/team.py", "/opt/apc/bin/apc", "/run/secrets/apc_amqp_url", "/tmp/x"]
    for name, expected in (
        ("apc-writer", "apc_amqp_url apc_database_url"),
        ("apc-web", "apc_amqp_url apc_database_url users.json"),
    ):
        assert release.pods.inside(name, READ_KEY, key).strip() == "FileNotFoundError"
        assert release.pods.inside(name, own) == expected
        assert release.pods.inside(name, WRITE, *paths).split() == ["/tmp/x"]
        token = str(Path("/var/run/secrets/kubernetes.io/serviceaccount/token"))
        assert release.pods.inside(name, READ_KEY, token).strip() == "FileNotFoundError"

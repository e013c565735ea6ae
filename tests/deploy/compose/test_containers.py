"""The guide in real containers: results are read, processes killed, and an agent reaches only what it needs."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from .conftest import PROJECT, Stack

AGENTS = ("lead", "security", "style")
REACH = """
import socket, sys
for place in sys.argv[1:]:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        print(place)
    except OSError:
        pass
"""
READ_KEY = """
import sys
try:
    print(open(sys.argv[1]).readline())
except OSError as error:
    print(type(error).__name__)
"""
WRITE = """
import sys
for path in sys.argv[1:]:
    try:
        open(path, "w").close()
        print(path)
    except OSError:
        pass
"""
KEY = "/var/lib/apc/log-key.pem"
CONSOLE = "web:8443"


def address(stack: Stack, service: str) -> str:
    """The address of a service in the network `services`."""
    found = stack.compose("ps", "--format", "json", service)
    name = json.loads(found.splitlines()[0])["Name"]
    form = f'{{{{(index .NetworkSettings.Networks "{PROJECT}_services").IPAddress}}}}'
    return _docker("inspect", name, "--format", form)


@pytest.mark.timeout(1800)
def test_a_team_goes_on_through_kills_and_a_restart(stack: Stack) -> None:
    first = stack.ask(1)
    assert (first["number"], first["merge"], len(first["opinions"])) == (1, False, 2)

    with ThreadPoolExecutor() as threads:
        for number, killed in ((2, ("style", "orchestrator", "persister")), (3, ("rabbitmq", "postgres", "lead"))):
            asked = threads.submit(stack.ask, number)
            stack.kill(*killed)
            stack.up(f"seconds until everything is healthy after killing {', '.join(killed)}")
            assert asked.exception() is None or stack.ask(number), "an interrupted client asks again by the same key"
            assert stack.ask(number)["number"] == number

    sessions = json.loads(stack.compose("run", "--rm", "-T", "operator", "session", "list", "--json"))
    assert {one["state"] for one in sessions} == {"CLOSED"} and len(sessions) == 3
    stack.compose("exec", "-T", "persister", "apc", "log", "verify")

    stack.compose("down")
    stack.up("seconds until everything is healthy after `down`")
    assert stack.ask(1) == first, "the session of the key, from the log"
    stack.compose("exec", "-T", "persister", "apc", "log", "verify")
    passwords = json.loads((stack.folder / "deploy/secrets/passwords.json").read_text())
    said = stack.compose("logs", "--no-color")
    assert "agent_id" in said and not [user for user, password in passwords.items() if password in said]


@pytest.mark.timeout(900)
def test_an_agent_reads_no_key_and_reaches_neither_management_nor_gate_nor_log_writer(stack: Stack) -> None:
    gate, log_writer = address(stack, "orchestrator"), address(stack, "persister")
    services = [f"{host}:8080" for host in ("orchestrator", "persister", gate, log_writer)]
    management = ["rabbitmq:15672", "rabbitmq:15692"]
    needed = ["rabbitmq:5672", "postgres:5432", "artifacts:8082"]

    # Each act works where its guard is missing: in the services' network, beside the broker, with the log's volume.
    unguarded = stack.python(REACH, *services, options=(), service="ask")
    assert unguarded.split() == services
    unguarded = stack.python(REACH, "127.0.0.1:15672", "127.0.0.1:15692", options=(), service="register")
    assert unguarded.split() == ["127.0.0.1:15672", "127.0.0.1:15692"]
    volume = ("--volume", f"{PROJECT}_apc-log:/var/lib/apc")
    assert "PRIVATE KEY" in stack.python(READ_KEY, KEY, options=volume, service="lead")
    assert stack.python(REACH, CONSOLE, options=(), service="web").split() == [CONSOLE]

    for agent in AGENTS:
        others = [f"{other}:8080" for other in AGENTS if other != agent]
        assert stack.inside(agent, REACH, *services, *management, *others, CONSOLE, *needed).split() == needed, agent
        assert stack.inside(agent, READ_KEY, KEY).strip() == "FileNotFoundError", agent


def test_an_agent_changes_neither_its_code_nor_an_artifact(stack: Stack) -> None:
    paths = ["/agents/review.py", "/opt/apc/bin/apc", "/var/lib/apc-artifacts/x", "/run/secrets/apc_amqp_url", "/tmp/x"]
    volume = ("--volume", f"{PROJECT}_apc-artifacts:/writable")

    assert stack.python(WRITE, "/writable/x", options=volume, service="lead").split() == ["/writable/x"], "unguarded"
    assert stack.inside("lead", WRITE, *paths).split() == ["/tmp/x"]


def test_the_image_is_small(stack: Stack) -> None:
    base, ours = _size("python:3.13-slim"), _size("apc-bus:0.1.0")
    stack.figures["MB of the image apc-bus above its base"] = above = round((ours - base) / 1e6)
    assert above <= 200  # 60 of them for rules (CEL, JSON Schema), 15 for the doors


def _size(image: str) -> int:
    return int(_docker("image", "inspect", image, "--format", "{{.Size}}"))


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout.strip()

"""The door of A2A in its container: a caller gives the team a task over TLS; from inside nothing else is reached."""

import json
import ssl
import urllib.error
import urllib.request
from typing import Any

import pytest
from tests.support.waiting import until

from .conftest import Stack
from .test_containers import KEY, REACH, READ_KEY, WRITE, address

URL = "https://localhost:8445"
SETTINGS = "COMPOSE_PROFILES=a2a\nAPC_A2A_IMAGE=pull-request-review:1\nAPC_A2A_TEAM=review:team\n"
ASKED = 50


class Caller:
    """A client of the door that trusts the certificate of `apc deploy init`."""

    def __init__(self, stack: Stack, token: str) -> None:
        self._context = ssl.create_default_context(cafile=str(stack.folder / "deploy/secrets/a2a_tls_cert"))
        self._headers = {"A2A-Version": "1.0", "Content-Type": "application/a2a+json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the document of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(URL + path, data, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._context) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")


@pytest.fixture(scope="module")
def door(stack: Stack) -> Stack:
    """The stack with the profile of the door."""
    (stack.folder / ".env").write_text(SETTINGS)
    stack.up("seconds until the door of A2A is healthy")
    return stack


@pytest.mark.timeout(900)
async def test_a_caller_gives_the_team_a_task(door: Stack) -> None:
    said = door.compose("run", "--rm", "-T", "operator", "caller", "add", "ida", "--via", "door")
    token = said.split()[-1]
    caller, stranger = Caller(door, token), Caller(door, "")
    status, card = stranger.ask("/.well-known/agent-card.json")
    assert status == 200 and URL in json.dumps(card)

    part = {"data": {"number": ASKED, "diff": '+ password = "x"'}}
    body = {"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [part]}}
    assert stranger.ask("/a2a/rest/message:send", body)[0] == 401
    status, sent = caller.ask("/a2a/rest/message:send", body)
    assert status == 200, sent
    task = sent["task"]["id"]

    def state() -> str:
        return str(caller.ask(f"/a2a/rest/tasks/{task}")[1]["status"]["state"])

    door.kill("a2a")
    door.up("seconds until the door of A2A is healthy after kill -9")
    await until(lambda: state() == "TASK_STATE_COMPLETED", 120, pause_seconds=0.5)
    assert '"merge": false' in json.dumps(caller.ask(f"/a2a/rest/tasks/{task}")[1])
    sessions = json.loads(door.compose("run", "--rm", "-T", "operator", "session", "list", "--json"))
    named = ("--session-id", sessions[0]["session_id"])
    assert "ida" in door.compose("run", "--rm", "-T", "operator", "packet", "trace", *named, "--json")


@pytest.mark.timeout(600)
def test_from_inside_the_door_nothing_else_is_reached(door: Stack) -> None:
    gate, log_writer = address(door, "orchestrator"), address(door, "persister")
    others = [
        *(f"{host}:8080" for host in ("orchestrator", "persister", gate, log_writer)),
        "rabbitmq:15672",
        "web:8443",
    ]
    needed = ["rabbitmq:5672", "postgres:5432"]
    assert door.inside("a2a", REACH, *others, *needed).split() == needed
    assert door.inside("a2a", READ_KEY, KEY).strip() == "FileNotFoundError"
    callers = "/var/lib/apc-callers/callers.json"
    assert door.inside("a2a", READ_KEY, callers).startswith("{")
    assert door.inside("a2a", WRITE, callers, "/agents/review.py").split() == []

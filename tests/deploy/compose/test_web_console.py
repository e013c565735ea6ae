"""The web console in its container: a person logs in and acts, and nothing else can be done from there."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.waiting import until
from tests.support.web.console_client import ConsoleClient

from .conftest import PROJECT, Stack
from .test_containers import KEY, REACH, READ_KEY, WRITE, address

ASKED = 40
"""The pull request of this file; the others have theirs."""


@pytest.fixture
def person(stack: Stack) -> ConsoleClient:
    """The first account, logged in over TLS with the certificate that `apc deploy init` has made."""
    client = ConsoleClient(8443, stack.folder / "deploy/secrets/web_tls_cert")
    client.log_in("admin", (stack.folder / "deploy/secrets/web_password").read_text())
    return client


@pytest.mark.timeout(600)
async def test_a_person_reads_and_acts(stack: Stack, person: ConsoleClient) -> None:
    about = person.ask("GET", "/about")
    assert (about["user"], about["role"], about["can_act"]) == ("admin", "operator", True)
    assert person.ask("GET", "/tasks")["items"] == [] == person.ask("GET", "/effects")["items"]

    stack.compose("stop", "style")  # so that the session waits
    try:
        with ThreadPoolExecutor() as threads:
            asked = threads.submit(stack.ask, ASKED)
            running: list[str] = []

            def is_running() -> bool:
                sessions = person.ask("GET", "/sessions")["items"]
                running[:] = [one["session_id"] for one in sessions if not one["is_terminal"]]
                return bool(running)

            await until(is_running, 120, pause_seconds=0.5)
            paused = person.ask("POST", f"/sessions/{running[0]}/pause", {"reason": "a look"})
            assert paused["detail"]["state"].startswith("paused in")
            assert person.ask("POST", f"/sessions/{running[0]}/resume", {"reason": "go on"})["verdict"] == "accepted"
            stack.compose("start", "style")
            assert asked.result()["number"] == ASKED
    finally:
        stack.up("seconds until everything is healthy after stopping style")

    packets = person.ask("GET", f"/packets?session_id={running[0]}&sender=admin")["items"]
    assert len(packets) == 2, "sent in the name of the one who logged in"
    trace = stack.compose("run", "--rm", "-T", "operator", "packet", "trace", "--session-id", running[0], "--json")
    assert "a look" in trace


@pytest.mark.timeout(600)
def test_from_inside_nothing_else_is_reached(stack: Stack) -> None:
    gate, log_writer = address(stack, "orchestrator"), address(stack, "persister")
    services = [f"{host}:8080" for host in ("orchestrator", "persister", gate, log_writer)]
    others = [*services, "rabbitmq:15672", "rabbitmq:15692", "artifacts:8082", "lead:8080"]
    needed = ["rabbitmq:5672", "postgres:5432"]

    unguarded = stack.python(REACH, *services, options=(), service="ask")
    assert unguarded.split() == services, "the services' network"
    unguarded = stack.python(REACH, "127.0.0.1:15672", "127.0.0.1:15692", options=(), service="register")
    assert unguarded.split() == ["127.0.0.1:15672", "127.0.0.1:15692"], "beside the broker"

    assert stack.inside("web", REACH, *others, *needed).split() == needed


def test_from_inside_no_key_is_read_and_nothing_is_written(stack: Stack) -> None:
    users, stolen = "/var/lib/apc/users.json", "/stolen/log-key.pem"
    log = ("--volume", f"{PROJECT}_apc-log:/stolen")
    assert "PRIVATE KEY" in stack.python(READ_KEY, stolen, options=log, service="web"), "unguarded"
    copied = "/var/lib/apc/copy.json"
    assert stack.python(WRITE, copied, options=(), service="accounts").split() == [copied], "unguarded"

    for path in (KEY, stolen):
        assert stack.inside("web", READ_KEY, path).strip() == "FileNotFoundError"
    given = stack.inside("web", "import os; print(*os.environ)").split()
    assert not [name for name in given if name.startswith("APC_") and ("MASTER" in name or "LOG_KEY" in name)]
    paths = [users, "/opt/apc/bin/apc", "/run/secrets/web_tls_key", "/run/secrets/apc_amqp_url", "/tmp/x"]
    assert stack.inside("web", WRITE, *paths).split() == ["/tmp/x"]


def test_an_account_is_added_and_known_at_once(stack: Stack) -> None:
    added = (
        "run",
        "--rm",
        "-T",
        "accounts",
        "user",
        "add",
        "vera",
        "--role",
        "viewer",
        "--password-file",
        "/dev/stdin",
    )
    stack.compose(*added, stdin="correct horse battery")

    viewer = ConsoleClient(8443, stack.folder / "deploy/secrets/web_tls_cert")
    viewer.log_in("vera", "correct horse battery")
    assert viewer.ask("GET", "/about")["role"] == "viewer"

"""A broker or a database that is down: one-shot commands say so within ten seconds, services wait for it."""

import signal
import time

import pytest
from tests.support.apc_command import ApcCommand

# Port 9 (discard): nobody listens.
NO_BROKER = "amqp://guest:guest@127.0.0.1:9/"
NO_DATABASE = "postgresql://someone:secret@127.0.0.1:9/apc"


@pytest.mark.parametrize(
    ("arguments", "settings", "names"),
    [
        (("migrate",), {"APC_DATABASE_URL": NO_DATABASE}, "Postgres"),
        (("packet", "trace"), {"APC_DATABASE_URL": NO_DATABASE}, "Postgres"),
        (("agent", "list"), {"APC_DATABASE_URL": NO_DATABASE}, "Postgres"),
        (("session", "list"), {"APC_DATABASE_URL": NO_DATABASE}, "Postgres"),
        (("session", "stop", "s-1"), {"APC_DATABASE_URL": NO_DATABASE}, "APC_AMQP_URL"),
        (("topology", "apply"), {"APC_AMQP_URL": NO_BROKER}, "broker"),
        (("up",), {"APC_AMQP_URL": NO_BROKER}, "APC_DATABASE_URL"),
        (("automl", "run"), {"APC_AMQP_URL": NO_BROKER}, "APC_DATABASE_URL"),
        (
            ("agent", "add", "a", "--role", "r", "--swarm", "s"),
            {"APC_AMQP_URL": NO_BROKER, "APC_DATABASE_URL": NO_DATABASE},
            "Postgres",
        ),
    ],
)
def test_a_one_shot_command_says_it_in_one_line(
    apc: ApcCommand, arguments: tuple[str, ...], settings: dict[str, str], names: str
) -> None:
    refused = apc(*arguments, timeout_seconds=30, given=settings)

    assert refused.returncode == 2
    assert names in refused.stderr
    assert "secret" not in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_broker_that_is_away_is_told_beside_a_database_that_is_there(apc: ApcCommand, postgres_url: str) -> None:
    refused = apc(
        "agent", "add", "a", "--role", "r", "--swarm", "s",
        timeout_seconds=30, given={"APC_AMQP_URL": NO_BROKER, "APC_DATABASE_URL": postgres_url},
    )  # fmt: skip

    assert refused.returncode == 2
    assert "broker" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.long
@pytest.mark.parametrize("service", ["orchestrator", "persister"])
def test_a_service_waits_and_leaves_when_told(apc: ApcCommand, service: str) -> None:
    running = apc.start("serve", service, given={"APC_AMQP_URL": NO_BROKER, "APC_DATABASE_URL": NO_DATABASE})
    assert running.stderr is not None
    try:
        waits = next(line for line in running.stderr if "service_waits" in line or "database_awaited" in line)
        assert "secret" not in waits
        running.send_signal(signal.SIGTERM)
        began = time.monotonic()
        running.communicate(timeout=30)
        assert running.returncode == 0, f"after {time.monotonic() - began:.1f} s"
    finally:
        running.kill()

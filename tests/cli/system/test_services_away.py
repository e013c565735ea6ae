"""A broker or a database that is down: one-shot commands say so within ten seconds, services wait for it."""

import asyncio
import signal
import time
from collections.abc import Callable
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from tests.support.apc_command import ApcCommand
from tests.support.failover.demotion import Switch, by_way_of, place_of
from tests.support.servers.ports import free_ports
from tests.support.servers.proxy import Proxy
from tests.support.waiting import until

from apc_bus.rabbit import apply_rabbit
from apc_bus.topology import build_topology
from apc_cli.commands.serve import _open_pool, _Service

# Port 9 (discard): nobody listens.
NO_BROKER = "amqp://guest:guest@127.0.0.1:9/"
NO_DATABASE = "postgresql://someone:secret@127.0.0.1:9/apc"
AWAY = {"APC_AMQP_URL": NO_BROKER, "APC_DATABASE_URL": NO_DATABASE, "APC_ARCHIVE_URL": "file:///nowhere"}


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
@pytest.mark.parametrize("service", ["orchestrator", "persister", "archiver"])
def test_a_service_waits_and_leaves_when_told(apc: ApcCommand, service: str) -> None:
    running = apc.start("serve", service, given=AWAY)
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


async def test_settings_that_are_mended_meanwhile_are_read_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a password in a mounted file: the service goes on with the new one."""
    monkeypatch.setenv("APC_DATABASE_URL", urlsplit(postgres_url)._replace(path="/another").geturl())
    service = _Service(asyncio.Event())
    opening = asyncio.create_task(service.connect(_open_pool))
    await until_it_waits(service)
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    pool = await asyncio.wait_for(opening, 30)
    assert pool is not None
    assert await pool.fetchval("SELECT 1") == 1
    await pool.close()


async def until_it_waits(service: _Service) -> None:
    async def waits() -> bool:
        return "another" in service.waits_for

    await until(waits)


STREAMS = {
    "full": 'exec "$@" 2>/dev/full',
    "no input": 'exec "$@" <&-',
    "none": 'exec "$@" <&- >&- 2>&-',
}


@pytest.mark.long
@pytest.mark.parametrize("service", ["orchestrator", "persister", "archiver"])
@pytest.mark.parametrize("streams", STREAMS)
def test_a_service_is_alive_while_it_waits_whatever_its_streams_are(
    apc: ApcCommand, service: str, streams: str
) -> None:
    """Its logs may go nowhere, and a socket that had the number of a closed stream would end it at the stop."""
    (port,) = free_ports(1)
    given = {**AWAY, "APC_HEALTH_PORT": str(port)}
    running = apc.start("serve", service, given=given, shell=STREAMS[streams])
    try:
        assert page(port, "/healthz", lambda status, _: True)[0] == 200
        status, said = page(port, "/readyz", lambda _, said: "Postgres" in said)
        assert status == 503 and "secret" not in said
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=30)
        assert running.returncode == 0
    finally:
        running.kill()


def page(port: int, path: str, is_it: Callable[[int, str], bool]) -> tuple[int, str]:
    """Return status and text of a page, once it is there and says what is awaited."""
    deadline, found = time.monotonic() + 60, (0, "")
    while True:
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", path)
            answer = connection.getresponse()
            found = answer.status, answer.read().decode()
            if is_it(*found):
                return found
        except OSError:
            pass
        assert time.monotonic() < deadline, f"the last answer: {found}"
        time.sleep(0.05)


@pytest.mark.long
async def test_a_service_whose_database_is_frozen_leaves_when_told(
    apc: ApcCommand, postgres_url: str, amqp_vhost_url: str
) -> None:
    await apply_rabbit(amqp_vhost_url, build_topology())
    assert apc("log", "key", "--create", given={"APC_DATA_DIR": str(apc.folder)}).returncode == 0
    async with Switch.open(place_of(postgres_url)) as switch, Proxy.open(by_way_of(postgres_url, switch.port)) as cable:
        services, ports = [], free_ports(2)
        try:
            for service, port in zip(("persister", "orchestrator"), ports, strict=True):
                given = {
                    "APC_AMQP_URL": amqp_vhost_url,
                    "APC_DATABASE_URL": cable.url,
                    "APC_HEALTH_PORT": str(port),
                    "APC_DATA_DIR": str(apc.folder),
                }
                services.append(apc.start("serve", service, given=given))
            for port in ports:
                await asyncio.to_thread(page, port, "/readyz", lambda status, _: status == 200)
            cable.freeze()
            for one in services:
                one.send_signal(signal.SIGTERM)
            said = [await asyncio.to_thread(one.communicate, timeout=30) for one in services]
            assert [one.returncode for one in services] == [0, 0], said
        finally:
            for one in services:
                one.kill()
                one.communicate()

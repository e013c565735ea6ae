"""TLS to RabbitMQ with generated certificates: it works with the right ones, and says in a line what is wrong else."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError
from tests.integration.privilege.conftest import GuardedBroker
from tests.support.waiting import until

from apc_agents import Agent, WorkerSettings
from apc_agents.running.service import run_worker
from apc_bus.consuming import handle
from apc_bus.errors import BusUnavailable
from apc_bus.port import Delivery, Message, Publication
from apc_bus.rabbit import apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings
from apc_bus.topology import INTER_AGENT, agent_queue

pytestmark = pytest.mark.broker
PATIENCE = timedelta(minutes=1)
"""Of the settings; what does not mend itself is said long before."""


@pytest.fixture(scope="module")
def client_file(guarded_broker: GuardedBroker) -> Path:
    """A client's certificate with its key, of the authority that the broker trusts."""
    return guarded_broker.certificates.issue("client", "client.example")


@pytest.fixture
def expired_server(guarded_broker: GuardedBroker) -> Iterator[None]:
    """The broker shows a certificate that has expired, until the test ends."""
    present(guarded_broker, is_expired=True)
    yield
    present(guarded_broker, is_expired=False)


def present(broker: GuardedBroker, *, is_expired: bool) -> None:
    broker.certificates.issue("server", "localhost", is_expired=is_expired)
    broker.node.ctl("eval", "ssl:clear_pem_cache().")


def tls_url(broker: GuardedBroker, user: str, host: str = "localhost", scheme: str = "amqps", vhost: str = "/") -> str:
    path = "" if vhost == "/" else vhost
    return f"{scheme}://{user}:{broker.passwords[user]}@{host}:{broker.tls_port}/{path}"


def settings(url: str, authority: Path | None, certificate: Path | None) -> BusSettings:
    return BusSettings(
        amqp_url=SecretStr(url),
        amqp_ca_file=authority,
        amqp_cert_file=certificate,
        connect_patience=PATIENCE,
    )


async def test_everything_goes_over_tls(guarded_broker: GuardedBroker, guarded_vhost: str, client_file: Path) -> None:
    given = settings(
        tls_url(guarded_broker, "topology", vhost=guarded_vhost), guarded_broker.certificates.authority, client_file
    )
    await apply_rabbit(given.amqp_nodes[0], guarded_broker.topology)
    bus = await connect_rabbit(given)
    seen: asyncio.Queue[Delivery] = asyncio.Queue()
    inbox = agent_queue("beta", urgent=False)
    await bus.publish(Publication(INTER_AGENT, "idea.blue.beta", Message(b"{}", "m", user_id="topology")))
    async with bus.subscribe(inbox) as subscription:
        (delivery,) = await subscription.receive()
        await subscription.nack(delivery, requeue=True)
    async with handle(bus, inbox, seen.put):
        assert (await seen.get()).message.message_id == "m"
    await bus.close()


async def refusal(given: BusSettings) -> str:
    """Return what connecting says; at once, for no waiting mends it."""
    started = time.monotonic()
    with pytest.raises(BusUnavailable) as refused:
        await connect_rabbit(given)
    assert time.monotonic() - started < PATIENCE.total_seconds() / 2
    return str(refused.value)


async def test_an_authority_that_is_not_trusted(guarded_broker: GuardedBroker, client_file: Path) -> None:
    url = tls_url(guarded_broker, "topology")
    said = await refusal(settings(url, guarded_broker.certificates.other_authority, client_file))
    assert f"localhost:{guarded_broker.tls_port} its certificate is of an authority that is not trusted" in said
    assert "APC_AMQP_CA_FILE" in said
    assert "not trusted" in await refusal(settings(url, None, client_file)), "nor is it one of the system's"


async def test_a_certificate_for_another_name(guarded_broker: GuardedBroker, client_file: Path) -> None:
    url = tls_url(guarded_broker, "topology", host="127.0.0.1")
    assert "for another address" in await refusal(settings(url, guarded_broker.certificates.authority, client_file))


async def test_a_certificate_that_has_expired(
    guarded_broker: GuardedBroker, client_file: Path, expired_server: None, exercised: Callable[..., None]
) -> None:
    """Matrix row 42."""
    exercised("a certificate that has expired")
    url = tls_url(guarded_broker, "topology")
    assert "has expired: renew it" in await refusal(settings(url, guarded_broker.certificates.authority, client_file))


async def test_no_client_certificate(guarded_broker: GuardedBroker) -> None:
    said = await refusal(settings(tls_url(guarded_broker, "topology"), guarded_broker.certificates.authority, None))
    assert "client certificate" in said and "APC_AMQP_CERT_FILE" in said


async def test_plain_text_to_a_tls_port(guarded_broker: GuardedBroker) -> None:
    said = await refusal(settings(tls_url(guarded_broker, "topology", scheme="amqp"), None, None))
    assert "it speaks TLS on this port" in said


async def test_tls_to_a_plain_port_is_passed_over(
    guarded_broker: GuardedBroker, guarded_vhost: str, client_file: Path
) -> None:
    plain = guarded_broker.url("topology", guarded_vhost).replace("amqp://", "amqps://")
    authority = guarded_broker.certificates.authority
    assert "it does not speak TLS on this port" in await refusal(settings(plain, authority, client_file))
    good = tls_url(guarded_broker, "topology", vhost=guarded_vhost)
    for _ in range(3):  # the order is random
        bus = await connect_rabbit(settings(f"{plain},{good}", authority, client_file))
        await bus.close()


async def test_a_file_that_is_no_certificate(guarded_broker: GuardedBroker, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    said = await refusal(settings(tls_url(guarded_broker, "topology"), empty, None))
    assert "APC_AMQP_CA_FILE" in said


def test_settings_that_would_leave_tls_out(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="amqps://"):
        settings("amqp://localhost/", Path(__file__), None)
    with pytest.raises(ValidationError, match="amqp_ca_file"):
        settings("amqps://localhost/", tmp_path / "none.pem", None)


@asynccontextmanager
async def counting(certificate: Path) -> AsyncIterator[tuple[int, list[float]]]:
    """A TLS server that lets nobody in; its port, and when each attempt came."""
    attempts: list[float] = []
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    def note(connection: object, name: str | None, context: object) -> None:
        attempts.append(time.monotonic())

    context.sni_callback = note
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1], attempts


async def test_a_worker_without_trust_does_not_spin(
    guarded_broker: GuardedBroker, exercised: Callable[..., None]
) -> None:
    """Row 42 of the fault matrix: pauses that grow, with jitter."""
    certificate = guarded_broker.certificates.issue("lonely", "localhost")
    async with counting(certificate) as (port, attempts):
        stop = asyncio.Event()
        given = settings(f"amqps://localhost:{port}/", guarded_broker.certificates.other_authority, None)
        quiet = WorkerSettings(database_url=None)
        worker = asyncio.create_task(
            run_worker(Agent("alpha", role="builder", swarm="red"), quiet, bus_settings=given, stop=stop)
        )
        await until(lambda: len(attempts) >= 4, 60)
        stop.set()
        await worker
    exercised("a worker that does not trust the broker", injected=len(attempts))
    gaps = [later - earlier for earlier, later in pairwise(attempts)]
    assert all(gap >= least for gap, least in zip(gaps, (0.25, 0.5, 1.0), strict=True)), gaps

"""Users over the management API: made, mended and deleted, whatever was there; and what it says when it cannot."""

import secrets
from collections.abc import Iterator

import pytest
from tests.integration.privilege.broker_probes import may_open
from tests.integration.privilege.conftest import GuardedBroker
from tests.support.servers.ports import free_ports

from apc_bus.errors import BusUnavailable
from apc_bus.rabbit.management import Management

pytestmark = pytest.mark.broker
NOTHING = ("^$", "^$", "^$")


@pytest.fixture
def management(guarded_broker: GuardedBroker) -> Management:
    return Management(guarded_broker.management_url())


@pytest.fixture
def user(guarded_broker: GuardedBroker) -> Iterator[str]:
    """A name that needs quoting, and that nobody has afterwards."""
    name = f"agent.a/b c-{secrets.token_hex(4)}"
    yield name
    if name in guarded_broker.node.ctl("list_users"):
        guarded_broker.node.ctl("delete_user", name)


async def test_a_user_is_made_changed_and_deleted(
    guarded_broker: GuardedBroker, management: Management, user: str
) -> None:
    def url(password: str) -> str:
        return guarded_broker.node.url("/", user.replace("/", "%2F").replace(" ", "%20"), password)

    for password in ("first", "first", "second"):  # repeating does no harm
        await management.set_user(user, password)
        await management.set_permission(user, "/", NOTHING)
        assert await may_open(url(password))
    assert not await may_open(url("first"))
    assert (await management.users())[user] == frozenset()
    assert (await management.permissions("/"))[user] == NOTHING
    assert await management.delete_user(user) is True
    assert await management.delete_user(user) is False, "gone already"
    assert not await may_open(url("second"))


async def test_an_exported_right_is_what_the_broker_holds(
    guarded_broker: GuardedBroker, management: Management
) -> None:
    held = await management.permissions("/")
    assert held["agent.alpha"][0] == "^$" and "beta" not in "".join(held["agent.alpha"])
    assert (await management.users())["guest"] == {"administrator"}


async def test_a_password_or_a_user_that_is_refused(guarded_broker: GuardedBroker) -> None:
    for user, password in (("guest", "wrong"), ("agent.alpha", guarded_broker.passwords["agent.alpha"])):
        with pytest.raises(BusUnavailable, match=f"refuses user '{user}'.*APC_MANAGEMENT_URL.*administrator"):
            await Management(guarded_broker.management_url(user, password)).users()


async def test_nobody_answers() -> None:
    with pytest.raises(BusUnavailable, match=r"does not answer .*rabbitmq_management enabled"):
        await Management(f"http://guest:guest@127.0.0.1:{free_ports(1)[0]}").users()


@pytest.mark.parametrize("url", ["amqp://a:b@host", "http://host", "http://a:b@host:port"])
def test_a_url_that_cannot_be_used(url: str) -> None:
    with pytest.raises(BusUnavailable, match="APC_MANAGEMENT_URL"):
        Management(url)


async def test_over_tls(guarded_broker: GuardedBroker) -> None:
    certificates, port = guarded_broker.certificates, guarded_broker.management_tls_port
    url = f"https://guest:guest@localhost:{port}"
    assert "guest" in await Management(url, certificates.authority).users()
    with pytest.raises(BusUnavailable, match="authority that is not trusted: check APC_AMQP_CA_FILE"):
        await Management(url, certificates.other_authority).users()

"""What a broker user may do is told by trying, and what the doctor makes of it."""

import pytest
from tests.integration.privilege.conftest import GuardedBroker

from apc_bus.rabbit.administration import BrokerRights, probe_rights
from apc_bus.settings import BusSettings
from apc_bus.topology import INGRESS, INTER_AGENT, LOG, RECEIPTS, RETRY
from apc_cli.doctor import Finding, Status
from apc_cli.doctor.broker import PROBED, look_at_permissions

RIGHTS = {
    "orchestrator": BrokerRights(False, frozenset({RECEIPTS, INTER_AGENT, LOG, RETRY})),
    "persister": BrokerRights(False, frozenset()),
    "operator": BrokerRights(False, frozenset({INGRESS, RECEIPTS})),
    "web": BrokerRights(False, frozenset({INGRESS, RECEIPTS})),
    "door": BrokerRights(False, frozenset({INGRESS})),
    "agent.alpha": BrokerRights(False, frozenset({INGRESS, RECEIPTS})),
    "topology": BrokerRights(True, frozenset(PROBED)),
}


@pytest.mark.parametrize("user", RIGHTS)
async def test_what_a_user_may_do_is_told_by_trying(guarded_broker: GuardedBroker, user: str) -> None:
    assert await probe_rights(guarded_broker.url(user), PROBED) == RIGHTS[user]


async def finding_of(broker: GuardedBroker, url: str, monkeypatch: pytest.MonkeyPatch) -> Finding:
    """Return what the doctor says of the user of a URL."""
    monkeypatch.setenv("APC_AMQP_URL", url)
    (finding,) = await look_at_permissions(BusSettings(), broker.topology)
    return finding


async def test_a_user_of_the_definitions_is_fine(
    guarded_broker: GuardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = await finding_of(guarded_broker, guarded_broker.url("orchestrator"), monkeypatch)
    assert finding.status is Status.OK
    assert finding.finding.startswith("orchestrator writes apc.inter_agent, apc.log")


async def test_a_shared_user_that_may_do_everything_is_a_warning(
    guarded_broker: GuardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = await finding_of(guarded_broker, guarded_broker.node.url("/", "guest", "guest"), monkeypatch)
    assert finding.status is Status.WARNING
    assert "guest may configure; writes apc.ingress" in finding.finding
    assert "apc topology export" in finding.fix

"""Checks of our own broker user's permissions, by trying; `users` asks the management API about all users."""

from apc_bus.rabbit.administration import BrokerRights, probe_rights
from apc_bus.rabbit.definitions import permissions
from apc_bus.settings import BusSettings
from apc_bus.topology import INGRESS, INTER_AGENT, LOG, RECEIPTS, RETRY, Topology
from apc_console.connections.broker import broker_user
from apc_console.doctor.finding import Finding, ok, warning

PROBED = (INGRESS, RECEIPTS, INTER_AGENT, LOG, RETRY)
"""Exchanges with keys that lead nowhere."""
BEYOND_AN_AGENT = (INTER_AGENT, LOG)
"""Exchanges that bypass the gate: an agent must not write to them."""
FIX = "`apc topology apply` with APC_MANAGEMENT_URL, or `apc topology export`, gives each its own user"


async def look_at_permissions(settings: BusSettings, topology: Topology) -> list[Finding]:
    """Check that the user of APC_AMQP_URL has no more rights than a job needs.

    Raises BusUnavailable, TopologyInvalid.
    """
    user = broker_user(settings)
    rights = await probe_rights(settings.amqp_nodes[0], PROBED)
    return [_judge(user, rights, is_known=user in permissions(topology))]


def _judge(user: str, rights: BrokerRights, *, is_known: bool) -> Finding:
    named = "may configure; " if rights.may_configure else ""
    said = f"{user} {named}writes {', '.join(sorted(rights.may_write)) or 'nothing'} (reading cannot be tried)"
    goes_round = any(name in rights.may_write for name in BEYOND_AN_AGENT)
    if not is_known and (rights.may_configure or goes_round):
        return warning("permissions", f"{said}: more than any one job needs", FIX)
    return ok("permissions", said)

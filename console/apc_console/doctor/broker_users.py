"""Checks of broker users: who may speak for whom, and whether their rights match their jobs."""

from collections.abc import Iterator, Mapping

from apc_bus.errors import BusUnavailable
from apc_bus.rabbit.definitions import Permission, permissions
from apc_bus.rabbit.management import Management
from apc_bus.settings import BusSettings
from apc_bus.topology import Topology
from apc_console.commands.agent.broker_users import open_management, own_users, vhost_of
from apc_console.commands.topology.definitions import shared_users
from apc_console.doctor.finding import Finding, ok, warning, wrong

IMPERSONATOR = "impersonator"
"""The tag of users whose messages may carry any user_id (RabbitMQ documentation, "Validated User-ID")."""
OWN = "with APC_MANAGEMENT_URL `apc agent add` gives each its own user; docs/how-to/security.md"
MEND = "`apc topology apply` with APC_MANAGEMENT_URL, or import what `apc topology export` writes"


async def look_at_users(settings: BusSettings, topology: Topology) -> list[Finding]:
    """Check for shared users, users that may impersonate others, and rights that differ from the topology's."""
    findings = [warning("users", sentence, OWN) for sentence in shared_users(topology)]
    try:
        management = open_management(settings)
        if management is None:
            return [*findings, ok("users", "tags and rights cannot be asked for without APC_MANAGEMENT_URL")]
        findings += await _look(settings, management, topology)
    except BusUnavailable as error:
        findings.append(wrong("users", str(error), "correct APC_MANAGEMENT_URL"))
    return findings or [ok("users", "nobody can speak for another; rights are as exported")]


async def _look(settings: BusSettings, management: Management, topology: Topology) -> list[Finding]:
    tags = await management.users()
    findings = [
        wrong(
            "users",
            f"broker user {user} has the tag {IMPERSONATOR}: it can send in anybody's name",
            f"rabbitmqctl set_user_tags {user}",
        )
        for user in sorted(tags)
        if IMPERSONATOR in tags[user]
    ]
    held = await management.permissions(vhost_of(settings))
    expected = permissions(topology)
    for user in own_users(settings, management):
        expected.pop(user, None)  # deployments where all share one user, or the deploy-time users
    agents = {agent.user for agent in topology.agents}
    return [*findings, *_compare(expected, held, agents)]


def _compare(expected: Mapping[str, Permission], held: Mapping[str, Permission], agents: set[str]) -> Iterator[Finding]:
    for user, permission in expected.items():
        if user not in held and user in agents:
            yield wrong("users", f"broker user {user} of a registered agent may not use this virtual host", MEND)
        elif user in held and held[user] != permission:
            yield warning("users", f"broker user {user} has other rights than its job needs: {held[user]}", MEND)

"""Create and delete the broker users of services and agents through the management API."""

from collections.abc import Iterable, Sequence
from urllib.parse import unquote, urlsplit

from apc_bus.rabbit.definitions import SERVICE_USERS, Limits, Permission, agent_permission, permissions, user_limits
from apc_bus.rabbit.management import Management
from apc_bus.settings import BusSettings, ConsoleSettings
from apc_bus.topology import AgentQueues, Topology
from apc_client.registration import queues_of, topology_of
from apc_console.connections.broker import broker_user, topology_url
from apc_console.connections.passwords import complete_passwords, default_file, forget_password, known_passwords
from apc_contracts.identity.registry import Registration

Remarks = list[str]
"""Sentences for the operator."""


def open_management(settings: BusSettings) -> Management | None:
    """Return the API of APC_MANAGEMENT_URL; None when it is not set. Raises BusUnavailable."""
    url = ConsoleSettings().management_url
    return None if url is None else Management(url.get_secret_value(), settings.amqp_ca_file)


def user_of_agent(settings: BusSettings, agent_id: str) -> str:
    """Return the broker user for an agent that names none.

    Its own user if users can be made here or we run as a service, else ours, shared.
    """
    ours = broker_user(settings)
    is_shared = ConsoleSettings().management_url is None and ours not in SERVICE_USERS
    return ours if is_shared else f"agent.{agent_id}"


def vhost_of(settings: BusSettings) -> str:
    """Return the virtual host of APC_AMQP_URL."""
    return unquote(urlsplit(settings.amqp_nodes[0]).path[1:]) or "/"


def own_users(settings: BusSettings, management: Management) -> set[str]:
    """Return the users of this environment, whose rights only the deployment changes, never a command."""
    return {broker_user(settings), unquote(urlsplit(topology_url(settings)).username or ""), management.user}


async def make_users(settings: BusSettings, topology: Topology) -> Remarks:
    """Create or repair every user of a topology; do nothing without APC_MANAGEMENT_URL.

    Raises:
        BusUnavailable, InputUnusable, TopologyInvalid: as `make_agent_users`.
    """
    management = open_management(settings)
    if management is None:
        return []
    return await _make_users(settings, management, permissions(topology), user_limits(topology))


async def make_agent_users(
    settings: BusSettings, added: Sequence[Registration], everybody: Iterable[Registration]
) -> Remarks:
    """Create or repair the users of agents that are being registered.

    Args:
        everybody: all agents registered afterwards: agents that share a user share its rights.

    Raises:
        BusUnavailable: the API is away or refuses.
        InputUnusable: passwords that cannot be used.
        TopologyInvalid: an agent has the user of a service.
    """
    management = open_management(settings)
    if management is None:
        unmanaged = {one.broker_user for one in added} - {broker_user(settings)}
        return [
            f"the broker user {user} is not managed from here (no APC_MANAGEMENT_URL): `apc topology export` writes "
            "its definitions; import them"
            for user in sorted(unmanaged)
        ]
    topology = topology_of(settings, list(map(queues_of, everybody)))
    users = {one.broker_user for one in added}
    grants = {user: permission for user, permission in permissions(topology).items() if user in users}
    return await _make_users(settings, management, grants, user_limits(topology))


async def _make_users(
    settings: BusSettings, management: Management, grants: dict[str, Permission], limits: dict[str, Limits]
) -> Remarks:
    """Create users; an existing one keeps its password, unless the environment or the file has one for it."""
    remarks = []
    there, file = await management.users(), default_file()
    for user in grants.keys() - own_users(settings, management):
        known = known_passwords(file)
        if user not in there and user not in known:
            known, _ = complete_passwords([user], file)
            remarks.append(f"made broker user {user}: its password is in {file}")
        if user in known:
            await management.set_user(user, known[user])
        else:
            remarks.append(f"broker user {user} is there and keeps its password, which is not in {file}")
        await management.set_permission(user, vhost_of(settings), grants[user])
        await management.set_limits(user, limits.get(user, {}))
    return sorted(remarks)


async def cut_off(settings: BusSettings, agent_id: str, user: str, sharing: Sequence[AgentQueues]) -> Remarks:
    """Delete an agent's broker user and close its connections, so that nothing of it is accepted any more.

    A user that other agents share, or that is our own, stays, and the remarks say so; its rights shrink to theirs.

    Args:
        sharing: the other agents with this user.

    Raises:
        BusUnavailable: the API is away or refuses: nothing was changed, or not all of it; repeat the command.
    """
    names = ", ".join(agent.agent_id for agent in sharing)
    management = open_management(settings)
    if user in SERVICE_USERS or user == broker_user(settings):
        return [f"broker user {user} of agent {agent_id} stays: it is not the agent's alone; give each its own"]
    if sharing:
        if management is not None and user not in own_users(settings, management):
            await management.set_permission(user, vhost_of(settings), agent_permission(sharing))
        return [f"broker user {user} of agent {agent_id} stays: agents {names} share it; give each its own"]
    if management is None:
        return [
            f"broker user {user} of agent {agent_id} is not managed from here (no APC_MANAGEMENT_URL): "
            f"`rabbitmqctl delete_user {user}` takes it away and closes its connections"
        ]
    was_there = await management.delete_user(user)
    forget_password(user, default_file())
    what = "deleted, its connections are closed" if was_there else "gone already"
    return [f"broker user {user} is {what}"]

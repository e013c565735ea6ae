"""Create and delete the broker users of services and agents through the management API."""

import os
import secrets
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from urllib.parse import unquote, urlsplit

import asyncpg
import orjson

from apc_bus.database import first_line
from apc_bus.folders import locked, make_private_folder
from apc_bus.rabbit.definitions import SERVICE_USERS, Limits, Permission, agent_permission, permissions, user_limits
from apc_bus.rabbit.management import Management
from apc_bus.settings import BusSettings, ConsoleSettings
from apc_bus.topology import AgentQueues, Topology
from apc_cli.connections import broker_user, topology_url
from apc_cli.errors import InputUnusable
from apc_client.registration import queues_of, topology_of
from apc_contracts.identity.registry import Registration
from apc_contracts.text import some_of
from apc_persister.database.logins import end_login, host_owner, make_login, may_make_logins

# Passwords of broker users: from the environment, from a private file, or generated and kept there.

RANDOM_BYTES = 32


def given_passwords() -> dict[str, str]:
    """Return user -> password of APC_BROKER_PASSWORDS. Raises InputUnusable."""
    given = ConsoleSettings().broker_passwords
    return {} if given is None else _parse(given.get_secret_value(), "APC_BROKER_PASSWORDS")


def default_file() -> Path:
    """Return the password file: APC_BROKER_PASSWORDS_FILE, else `<data_dir>/broker-passwords.json`."""
    return ConsoleSettings().broker_passwords_file or BusSettings().data_dir / "broker-passwords.json"


def known_passwords(file: Path) -> dict[str, str]:
    """Return user -> password of the environment and of the file; the environment takes precedence.

    Raises:
        InputUnusable: one of them is no JSON object of texts, or others than its owner may read the file.
    """
    return _read(file) | given_passwords()


def complete_passwords(users: Collection[str], file: Path) -> tuple[dict[str, str], list[str]]:
    """Return the passwords of all these users, and the users whose passwords were generated now.

    New passwords are written into `file` (mode 0600).

    Raises:
        InputUnusable: as `known_passwords`, or the file cannot be written.
    """
    known = known_passwords(file)
    if all(user in known for user in users):
        return known, []
    with _locked(file):
        known = known_passwords(file)
        missing = [user for user in users if user not in known]
        made = {user: secrets.token_urlsafe(RANDOM_BYTES) for user in missing}
        _write(file, _read(file) | made)
    return known | made, missing


def forget_password(user: str, file: Path) -> None:
    """Remove a user from the file, if it is there. Raises InputUnusable."""
    if user not in _read(file):
        return
    with _locked(file):
        _write(file, {one: password for one, password in _read(file).items() if one != user})


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Let no other command change the file meanwhile. Raises InputUnusable."""
    try:
        with locked(file):
            yield
    except OSError as error:
        raise InputUnusable(f"cannot write {file}: {error.strerror}") from error


def _read(file: Path) -> dict[str, str]:
    try:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise InputUnusable(f"{file} holds passwords and others may read it: chmod 600 {file}")
        text = file.read_text()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputUnusable(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputUnusable(f"cannot read {file}: {error}") from error
    return _parse(text, str(file))


def _parse(text: str, where: str) -> dict[str, str]:
    try:
        passwords = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InputUnusable(f"{where} is no JSON: {error}") from error
    if not isinstance(passwords, dict) or not all(isinstance(value, str) and value for value in passwords.values()):
        raise InputUnusable(f'{where} must be a JSON object of broker users and passwords: {{"orchestrator": "…"}}')
    return passwords


def _write(file: Path, passwords: dict[str, str]) -> None:
    """Replace the file atomically."""
    new = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    try:
        make_private_folder(file.parent)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(orjson.dumps(passwords, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")
        new.replace(file)
    except OSError as error:
        raise InputUnusable(f"cannot write {file}: {error.strerror}") from error


Remarks = list[str]
"""Sentences for the operator."""


def open_management(settings: BusSettings) -> Management | None:
    """Return the API of APC_MANAGEMENT_URL; None when it is not set. Raises BusUnavailable."""
    url = ConsoleSettings().management_url
    return None if url is None else Management(url.get_secret_value(), settings.amqp_ca_file)


def user_of_agent(settings: BusSettings, agent_id: str, host: str | None = None) -> str:
    """Return the broker user for an agent that names none.

    Its own user, or that of its host, if users can be made here or we run as a service, else ours, shared.
    """
    ours = broker_user(settings)
    is_shared = ConsoleSettings().management_url is None and ours not in SERVICE_USERS
    return ours if is_shared else login_of(agent_id, host)


def login_of(agent_id: str, host: str | None) -> str:
    """Return the name of the broker user and of the database login of an agent: its own, or its host's."""
    return f"agent.{agent_id}" if host is None else f"host.{host}"


def vhost_of(settings: BusSettings) -> str:
    """Return the virtual host of APC_AMQP_URL."""
    return unquote(urlsplit(settings.amqp_nodes[0]).path[1:]) or "/"


def own_users(settings: BusSettings, management: Management) -> set[str]:
    """Return the users of this environment, whose rights only the deployment changes, never a command."""
    deployer = urlsplit(topology_url(settings).split(",")[0]).username or ""
    return {broker_user(settings), unquote(deployer), management.user}


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
    names = some_of([agent.agent_id for agent in sharing])
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
            f"`rabbitmqctl delete_user {quote(user)}` takes it away and closes its connections"
        ]
    was_there = await management.delete_user(user)
    forget_password(user, default_file())
    what = "deleted, its connections are closed" if was_there else "gone already"
    return [f"broker user {user} is {what}"]


# Create and delete the database logins of agents, together with their broker users.

_REFUSALS = (asyncpg.InvalidParameterValueError, asyncpg.InsufficientPrivilegeError)
_HELD = (
    "a transaction holds its entry: its own, left open, or a prepared one "
    "(SELECT gid, owner FROM pg_prepared_xacts; ROLLBACK PREPARED)"
)


async def make_agent_logins(pool: asyncpg.Pool, added: Sequence[Registration]) -> Remarks:
    """Create or repair the logins of agents and hosts, each with the password that is known for the name of the login.

    Does nothing where our user is no member of apc_registrar. Raises InputUnusable for passwords that cannot be read.
    """
    if not await may_make_logins(pool):
        return []
    known = known_passwords(default_file())
    remarks = []
    for login, owner in {login_of(one.agent_id, one.host): login_owner(one) for one in added}.items():
        if login in known:
            remarks += await _make(pool, owner, login, known[login])
        elif ConsoleSettings().management_url is not None:
            remarks.append(f"database login {login} was not made: its password is not in {default_file()}")
    return remarks


def login_owner(registration: Registration) -> str:
    """Return the owner of an agent's login as `apc_access.make_login` takes it: the agent, or its host."""
    return registration.agent_id if registration.host is None else host_owner(registration.host)


async def _make(pool: asyncpg.Pool, owner: str, login: str, password: str) -> Remarks:
    try:
        is_new = await make_login(pool, owner, password)
    except _REFUSALS as error:
        return [f"database login {login} was not made: {error}"]
    except asyncpg.LockNotAvailableError:
        return [f"database login {login} keeps its password: {_HELD}"]
    return [f"made database login {login}: its password is that of the broker user {login}"] if is_new else []


async def end_agent_login(pool: asyncpg.Pool, login: str, owner: str) -> Remarks:
    """Delete a login and end its connections; does nothing unless our user is a member of apc_registrar.

    Args:
        owner: as `login_owner` returns it.

    Raises:
        InputUnusable: the login stays; says why, and who can change it.
    """
    if not await may_make_logins(pool):
        return []
    try:
        is_gone = await end_login(pool, owner)
    except _REFUSALS as error:
        raise InputUnusable(first_line(error)) from error
    except (asyncpg.LockNotAvailableError, TimeoutError) as error:
        raise InputUnusable(_HELD) from error
    if is_gone is None:
        return []
    if is_gone:
        return [f"database login {login} is deleted, its connections are closed"]
    return [
        f'database login {login} is closed, and stays because it owns something: DROP OWNED BY "{login}", then again'
    ]

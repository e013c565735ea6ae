"""What an operator does with agents: add, revoke, list."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from pydantic import ValidationError

from apc_agents.team import load_documents, load_members
from apc_bus.settings import BusSettings
from apc_client.operator import PEOPLE
from apc_client.registration import (
    LOG_PATIENCE,
    addition,
    inboxes_of,
    publish_changes,
    queues_of,
    register_schemas,
    topology_of,
    wait_until_recorded,
    with_keys,
)
from apc_console.commands.agent.broker_users import Remarks, cut_off, make_agent_users, user_of_agent
from apc_console.commands.agent.database_logins import end_agent_login, make_agent_logins
from apc_console.commands.topology.definitions import shared_users
from apc_console.connections.broker import apply, broker_user, open_bus
from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.identity.registry import ANY_SCHEMA, Kind, Registration, Right, voice_objection
from apc_contracts.identity.registry_change import AgentAdded, AgentRevoked
from apc_contracts.vocabulary import CONTROL_TYPES, PROTOCOL_VERSION, PROTOCOL_VERSIONS, PacketType
from apc_log.registry import read_registry, registered_agents


@dataclass(frozen=True, slots=True)
class AgentForm:
    """The options that the operator gave."""

    agent_id: str
    role: str
    swarm: str
    rights: str
    handles: str
    keys: tuple[str, ...]
    broker_user: str | None
    speaks: str = PROTOCOL_VERSION

    def change(self, default_user: str) -> AgentAdded:
        """Return the registry change. Raises InputUnusable with the option that is wrong."""
        handles = frozenset(_members(PacketType, self.handles, "--handles")) - CONTROL_TYPES
        registration = Registration(
            agent_id=self.agent_id,
            broker_user=self.broker_user or default_user,
            role=self.role,
            swarm_id=self.swarm,
            rights=frozenset(_members(Right, self.rights, "--rights")),
            handles=handles,
            # As an agent of the SDK that handles the packet type MESSAGE: it takes every schema.
            schemas=frozenset({ANY_SCHEMA} if PacketType.MESSAGE in handles else ()),
            public_keys=dict(map(_key, self.keys)),
            speaks=frozenset(_versions(self.speaks)),
        )
        try:
            return addition(registration)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise InputUnusable(f"{first['loc'][0]}: {first['msg']}") from error


@dataclass(frozen=True, slots=True)
class Added:
    """What was registered: ids of agents and schemas such as finding/1."""

    agents: list[str]
    remarks: Remarks
    schemas: list[str] = field(default_factory=list)

    @property
    def sentences(self) -> list[str]:
        """What to tell the operator, one line each."""
        named = [*(("agent", one) for one in self.agents), *(("schema", one) for one in self.schemas)]
        return [f"{kind} {name} is registered" for kind, name in named]


async def add_agent(form: AgentForm) -> Added:
    """Declare the agent's queues, make its broker user, register it, and wait until the log has it.

    A client has no queues, and our own broker user unless the form names another.
    """
    form.change(form.broker_user or form.agent_id)  # check the options before the environment
    settings = BusSettings()
    change = form.change(user_of_agent(settings, form.agent_id))
    if change.registration().is_run_client:  # sessions start from here: our own user speaks for it
        change = form.change(broker_user(settings))
    return Added([form.agent_id], await _add(settings, [change]))


async def add_person(person_id: str, role: str, via: Sequence[str], rights: str = "") -> Remarks:
    """Register a person for whom the broker users in `via` speak, and wait until the log has it.

    Says when our own broker user is none of them.

    Raises:
        InputUnusable: an option is wrong, or the id is an agent's.
    """
    settings, users = BusSettings(), frozenset(via)
    if not users:
        raise InputUnusable("--via: name a broker user that speaks for the person")
    registration = Registration(
        person_id,
        min(users),
        role,
        PEOPLE,
        rights=frozenset(_members(Right, rights, "--rights")),
        kind=Kind.PERSON,
        via=users,
    )
    try:
        change = addition(registration)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InputUnusable(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    async with open_log() as pool, open_bus(settings) as bus:
        if any(one.agent_id == person_id for one in await registered_agents(pool)):
            raise InputUnusable(f"{person_id} is an agent: choose another id for the person")
        await _check_voices(pool, [registration], bus.user)
        await publish_changes(bus, [change], settings.shards)
        await wait_until_recorded(pool, [change], settings.shards, LOG_PATIENCE)
    return [] if bus.user in users else [_not_ours(person_id, sorted(users), bus.user)]


def _not_ours(person_id: str, users: Sequence[str], ours: str) -> str:
    return (
        f"--via: only the broker user {' or '.join(users)} may answer for {person_id}, and the one in your "
        f"APC_AMQP_URL is {ours}. To answer from here, add --via {ours}"
    )


async def add_agents_of_code(names: Sequence[str]) -> Added:
    """Register agents, and all agents of teams, as their code describes them, with the schemas of their models.

    Raises:
        InputUnusable: a schema is unsafe, or registered with other content.
    """
    settings = BusSettings()
    agents = {place: agent for name in names for place, agent in load_members(name).items()}
    documents = load_documents(names)
    described = [agent.registration(user_of_agent(settings, agent.agent_id)) for agent in agents.values()]
    async with open_log() as pool:
        registrations = await with_keys(pool, described)
    remarks = await _add(settings, [addition(registration) for registration in registrations])
    if documents:
        async with open_log() as pool, open_bus(settings) as bus:
            await register_schemas(bus, pool, settings.shards, documents)
    return Added([registration.agent_id for registration in registrations], remarks, sorted(documents))


async def _add(settings: BusSettings, changes: Sequence[AgentAdded]) -> Remarks:
    added = [change.registration() for change in changes]
    async with open_log() as pool, open_bus(settings) as bus:
        await _check_voices(pool, added, bus.user)
        await apply(topology_of(settings, inboxes_of(added)))
        known = {one.agent_id: one for one in (*await registered_agents(pool), *added)}
        remarks = await make_agent_users(settings, added, known.values())
        remarks += await make_agent_logins(pool, added)
        await publish_changes(bus, changes, settings.shards)
        await wait_until_recorded(pool, changes, settings.shards, LOG_PATIENCE)
    topology = topology_of(settings, list(map(queues_of, known.values())))
    return [*remarks, *shared_users(topology)]


async def _check_voices(pool: asyncpg.Pool, added: Sequence[Registration], operator: str) -> None:
    """Refuse, before the gate does, what would let an agent speak for a person. Raises InputUnusable."""
    known = list((await read_registry(pool)).values())
    for one in added:
        objection = voice_objection(one, known, (operator,))
        if objection is not None:
            raise InputUnusable(objection)


async def revoke_agent(agent_id: str) -> Remarks:
    """Delete an agent's broker user, revoke the agent, and wait until the log has it. Idempotent.

    The broker comes first: from then on nothing of the agent is accepted, whether a gate runs or not.

    Raises:
        InputUnusable: there is no agent with that id.
    """
    settings = BusSettings()
    async with open_log() as pool, open_bus(settings) as bus:
        registry = await read_registry(pool)
        known = registry.pop(agent_id, None)
        if known is None:
            raise InputUnusable(f"agent {agent_id} is not registered")
        user = known.broker_user
        remarks: Remarks = []
        if known.kind is Kind.AGENT:  # the users that speak for a person are somebody else's
            others = [one for one in registry.values() if not one.is_revoked and one.kind is Kind.AGENT]
            sharing = [queues_of(one) for one in others if one.broker_user == user]
            remarks += await cut_off(settings, agent_id, user, sharing)
            remarks += await end_agent_login(pool, agent_id)
        if known.is_revoked:
            return [*remarks, f"agent {agent_id} was revoked before"]
        change = AgentRevoked(change_id=new_packet_id(), agent_id=agent_id)
        await publish_changes(bus, [change], settings.shards)
        await wait_until_recorded(pool, [change], settings.shards, LOG_PATIENCE)
    return remarks


def _members(kind: type[Right] | type[PacketType], text: str, option: str) -> Iterable[Any]:
    for word in filter(None, (part.strip() for part in text.split(","))):
        try:
            yield kind(word.upper() if kind is PacketType else word.lower())
        except ValueError as error:
            known = ", ".join(member.value for member in kind)
            raise InputUnusable(f"{option}: {word!r} is none of {known}") from error


def _versions(text: str) -> Iterable[str]:
    for version in filter(None, (part.strip() for part in text.split(","))):
        if version not in PROTOCOL_VERSIONS:
            raise InputUnusable(f"--speaks: {version!r} is none of {', '.join(PROTOCOL_VERSIONS)}")
        yield version


def _key(text: str) -> tuple[str, str]:
    name, is_there, value = text.partition("=")
    if not (name and is_there and value):
        raise InputUnusable(f"--key {text!r}: write KEY_ID=BASE64")
    return name, value

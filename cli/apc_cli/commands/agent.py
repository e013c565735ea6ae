"""The registered agents: whether they are alive, when last seen, and what waits for them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import asyncpg
import typer
from pydantic import ValidationError

from apc_agents.scheduling import list_schedules
from apc_agents.team import load_contract_files, load_documents, load_members
from apc_bus.database import DATABASE_AWAY, first_line
from apc_bus.errors import BusError
from apc_bus.port import Bus, QueueDepth
from apc_bus.settings import BusSettings
from apc_bus.topology import inbox_queue
from apc_cli.commands.agent_logins import (
    Remarks,
    cut_off,
    end_agent_login,
    login_of,
    login_owner,
    make_agent_logins,
    make_agent_users,
    user_of_agent,
)
from apc_cli.commands.group import Commands, ContractFile
from apc_cli.commands.topology import shared_users
from apc_cli.connections import apply, broker_user, delete_own_queues, open_bus, open_log
from apc_cli.errors import InputUnusable, RevocationIncomplete, ServiceAway
from apc_cli.output.files import names_in
from apc_cli.output.output import AsJson, print_json, print_rows, tell, wants_json
from apc_cli.output.terminal import echo
from apc_client.local_acts import inbox_depths as depths_of_inboxes
from apc_client.operator import PEOPLE
from apc_client.registration import (
    LOG_PATIENCE,
    addition,
    inboxes_of,
    publish_changes,
    queues_of,
    register_file,
    register_schemas,
    topology_of,
    wait_until_recorded,
    with_keys,
)
from apc_client.sending import until
from apc_contracts.contract.contract import load_contract
from apc_contracts.errors import ApcError
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.identity.registry import (
    ANY_SCHEMA,
    Kind,
    Neighbours,
    Registration,
    host_objection,
    voice_objection,
)
from apc_contracts.identity.registry_change import AgentAdded, AgentRevoked, AnyChange
from apc_contracts.text import numbered
from apc_contracts.vocabulary import CONTROL_TYPES, PROTOCOL_VERSION, PROTOCOL_VERSIONS, PacketType, Right
from apc_log.queries import list_invocations
from apc_log.queries.agents import ListedAgent, count_left_behind, count_open_deliveries, list_registered
from apc_log.registry import read_registry, registered_agents

MOST_SENTENCES = 50
"""Agents of a command that are named one by one."""


async def listed(pool: asyncpg.Pool, now: datetime) -> list[dict[str, Any]]:
    """Return what the log knows about every agent that was ever registered."""
    opened = await count_open_deliveries(pool)
    return [
        asdict(one) | {"is_alive": _is_alive(one, now), "open": opened.get(one.agent_id, 0)}
        for one in await list_registered(pool)
    ]


def _is_alive(one: ListedAgent, now: datetime) -> bool | None:
    """Return whether an agent is alive; None for a person or client that has said nothing: neither has heartbeats."""
    has_process = bool(one.handles) or one.host is not None
    return one.is_alive(now) if has_process or one.last_seen is not None else None


def inbox_depths(depths: Mapping[str, QueueDepth], agent_id: str, host: str | None) -> list[QueueDepth]:
    """Return the depths of an agent's queues, or those of its host, as far as they exist."""
    queues = (inbox_queue(agent_id, host, urgent) for urgent in (True, False))
    return [depths[queue] for queue in queues if queue in depths]


# What an operator does with agents: add, revoke, list.


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
    host: str | None = None
    allow_shared: bool = False

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
            host=self.host,
            allow_shared=self.allow_shared,
        )
        return _addition(registration)


def _addition(registration: Registration) -> AgentAdded:
    try:
        return addition(registration)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InputUnusable(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


@dataclass(frozen=True, slots=True)
class Added:
    """What was registered: ids of agents, schemas such as finding/1, and names of contracts."""

    agents: list[str]
    remarks: Remarks
    schemas: list[str] = field(default_factory=list)
    contracts: list[str] = field(default_factory=list)

    @property
    def sentences(self) -> list[str]:
        """What to tell the operator, one line each; of very many agents only their number."""
        named = {"agent": self.agents, "schema": self.schemas, "contract": self.contracts}
        if len(self.agents) > MOST_SENTENCES:
            del named["agent"]
        told = [f"{kind} {name} is registered" for kind, names in named.items() for name in names]
        return told if "agent" in named else [f"{len(self.agents):,} agents are registered", *told]


async def add_agent(form: AgentForm) -> Added:
    """Declare the agent's queues, make its broker user, register it, and wait until the log has it.

    A client has no queues, and our own broker user unless the form names another.
    """
    form.change(form.broker_user or form.agent_id)  # check the options before the environment
    settings = BusSettings()
    change = form.change(user_of_agent(settings, form.agent_id, form.host))
    if change.registration().is_run_client:  # sessions start from here: our own user speaks for it
        if form.host is not None:
            raise InputUnusable(f"{form.agent_id} is a client, which has no process: leave --host out")
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
    change = _addition(registration)
    async with open_log() as pool, open_bus(settings) as bus:
        if any(one.agent_id == person_id for one in await registered_agents(pool)):
            raise InputUnusable(f"{person_id} is an agent: choose another id for the person")
        _check(await read_registry(pool), [registration], bus.user)
        await publish_changes(bus, [change], settings.shards)
        await wait_until_recorded(pool, [change], settings.shards, LOG_PATIENCE)
    return [] if bus.user in users else [_not_ours(person_id, sorted(users), bus.user)]


def _not_ours(person_id: str, users: Sequence[str], ours: str) -> str:
    return (
        f"--via: only the broker user {' or '.join(users)} may answer for {person_id}, and the one in your "
        f"APC_AMQP_URL is {ours}. To answer from here, add --via {ours}"
    )


async def add_agents_of_code(names: Sequence[str], host: str | None = None, *, allow_shared: bool = False) -> Added:
    """Register agents, and all agents of teams, as their code describes them, with their schemas and contracts.

    Args:
        host: the host in whose process they run; None = each has its own queues.
        allow_shared: whether some of a host's agents may judge others of it.

    Raises:
        InputUnusable: a schema is unsafe, or registered with other content.
        ContractInvalid: the file of a team's contract cannot be used; names the place.
    """
    settings = BusSettings()
    agents = {place: agent for name in names for place, agent in load_members(name).items()}
    documents, files = load_documents(names), load_contract_files(names)
    described = [
        replace(agent.registration(user_of_agent(settings, agent.agent_id, host)), host=host, allow_shared=allow_shared)
        for agent in {agent.agent_id: agent for agent in agents.values()}.values()
    ]
    async with open_log() as pool:
        registrations = await with_keys(pool, described)
    remarks = await _add(settings, list(map(_addition, registrations)))
    contracts = []
    if documents or files:
        async with open_log() as pool, open_bus(settings) as bus:
            await register_schemas(bus, pool, settings.shards, documents)
            for file in files:
                contracts.append((await register_file(bus, pool, settings.shards, file)).contract.name)
    return Added([registration.agent_id for registration in registrations], remarks, sorted(documents), contracts)


async def _add(settings: BusSettings, changes: Sequence[AgentAdded]) -> Remarks:
    added = [change.registration() for change in changes]
    async with open_log() as pool, open_bus(settings) as bus:
        registry = await read_registry(pool)
        _check(registry, added, bus.user)
        return await _register(settings, pool, bus, registry, changes)


async def _register(
    settings: BusSettings,
    pool: asyncpg.Pool,
    bus: Bus,
    registry: Mapping[str, Registration],
    changes: Sequence[AgentAdded],
) -> Remarks:
    """Make what the agents need at broker and database, send the changes, and wait until the log has them."""
    added = [change.registration() for change in changes]
    old = {name for one in inboxes_of(registry.values()) for name in one.names}
    inboxes = inboxes_of(added)
    await apply(topology_of(settings, inboxes), {name for one in inboxes for name in one.names} - old)
    active = (one for one in registry.values() if not one.is_revoked and one.kind is Kind.AGENT)
    known = {one.agent_id: one for one in (*active, *added)}
    remarks = await make_agent_users(settings, added, known.values())
    remarks += await make_agent_logins(pool, added)
    await _publish_all(settings, pool, bus, changes)
    topology = topology_of(settings, list(map(queues_of, known.values())))
    return [*remarks, *shared_users(topology)]


async def _publish_all(settings: BusSettings, pool: asyncpg.Pool, bus: Bus, changes: Sequence[AgentAdded]) -> None:
    await publish_changes(bus, changes, settings.shards)
    await wait_until_recorded(pool, changes, settings.shards, LOG_PATIENCE)


def _check(registry: Mapping[str, Registration], added: Sequence[Registration], operator: str) -> None:
    """Refuse, before the gate does, what would let an agent speak for a person or a judge. Raises InputUnusable.

    An agent changes between its own queues and a host only by `apc agent move`, which loses nothing.
    """
    neighbours = Neighbours(registry.values())
    for one in added:
        known = registry.get(one.agent_id)
        if known is not None and not known.is_revoked and known.has_inbox and known.host != one.host:
            raise InputUnusable(f"{one.agent_id} {_place(known.host)}: {_way_to(one)}")
        objection = voice_objection(one, neighbours.of_other_kind(one), (operator,))
        objection = objection or host_objection(one, neighbours)
        if objection is not None:
            raise InputUnusable(objection)
        neighbours.put(one)


def _place(host: str | None) -> str:
    return "has its own queues" if host is None else f"runs on host {host}"


def _way_to(wanted: Registration) -> str:
    way = "--own-queues" if wanted.host is None else f"--host {wanted.host}"
    return f"move it with `apc agent move {wanted.agent_id} {way}`"


async def revoke_agent(agent_id: str) -> Remarks:
    """Revoke an agent, delete its broker user and its database login, and wait until the log has it. Idempotent.

    The registry comes first: whatever the agent does against the other steps, the gate takes nothing of it from then
    on. A step that fails does not keep the next one from being taken. An agent that has filled the broker's memory or
    the gate's queue keeps the change from being sent: once its connections are closed, it is sent again.

    Raises:
        InputUnusable: there is no agent with that id.
        ServiceAway: the change was sent, and is not in the log yet.
        RevocationIncomplete: something of the agent is left; says what.
    """
    settings = BusSettings()
    async with open_log() as pool, open_bus(settings) as bus:
        registry = await read_registry(pool)
        known = registry.pop(agent_id, None)
        if known is None:
            raise InputUnusable(f"agent {agent_id} is not registered")
        changes = [] if known.is_revoked else [AgentRevoked(change_id=new_packet_id(), agent_id=agent_id)]
        unsent = await _publish_if_possible(bus, changes, settings.shards)
        remarks, left = await _take_away(settings, pool, known, registry.values())
        if unsent is not None and (unsent := await _publish_if_possible(bus, changes, settings.shards)) is not None:
            left.append(f"its registration: {first_line(unsent)}")
            changes = []
        if known.is_revoked:
            remarks.append(f"agent {agent_id} was revoked before")
        try:
            await wait_until_recorded(pool, changes, settings.shards, LOG_PATIENCE)
        except ServiceAway as error:
            if not left:
                raise
            left.append(str(error))
    if left:
        tell(remarks)
        raise RevocationIncomplete(agent_id, left)
    return remarks


async def _publish_if_possible(bus: Bus, changes: Sequence[AnyChange], shards: int) -> BusError | None:
    """Send changes to every shard; return why the broker did not take them."""
    try:
        await publish_changes(bus, changes, shards)
    except BusError as error:
        return error
    return None


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent is to run: on a host, or with its own queues.

    Args:
        host: None = its own queues.
        allow_shared: whether it may judge agents of the host, or be judged by them.
    """

    host: str | None
    allow_shared: bool = False


async def move_agent(agent_id: str, place: Place, patience: timedelta) -> Remarks:
    """Let the gate deliver at another place from now on, and end the old one when nothing is open there any more.

    Until then the process at the old place goes on and may speak for the agent. Repeating continues what was
    interrupted.

    Raises:
        InputUnusable: there is no such agent, or it may not run there.
        ServiceAway: the log did not have a change in time, or something is still open at the old place.
        RevocationIncomplete: it has moved, and something is left that it logged in with before.
    """
    settings = BusSettings()
    async with open_log() as pool, open_bus(settings) as bus:
        registry = await read_registry(pool)
        known = registry.get(agent_id)
        if known is None or known.is_revoked or not known.has_inbox:
            raise InputUnusable(f"no agent {agent_id} with an inbox is registered: `apc agent list` shows who is")
        user = _user_at(settings, known, place.host, registry.values())
        moved = replace(known, host=place.host, broker_user=user, allow_shared=place.allow_shared)
        moved = replace(moved, via=(known.via | {known.broker_user}) - {user})
        remarks: Remarks = []
        if known.host != place.host:
            if known.via:
                raise InputUnusable(
                    f"{agent_id} is on its way to where it {_place(known.host)}: {_way_to(known)} first"
                )
            others = {name: one for name, one in registry.items() if name != agent_id}
            _check(others, [moved], bus.user)
            remarks += await _register(settings, pool, bus, registry, [_addition(moved)])
        elif not known.via and known.host is None:
            return [f"{agent_id} {_place(None)} already"]
        await _until_ended(pool, bus, moved, patience)
        if moved.via:
            await _publish_all(settings, pool, bus, [_addition(replace(moved, via=frozenset()))])
        if place.host is not None:
            await delete_own_queues(agent_id)
        others = {name: one for name, one in registry.items() if name != agent_id}
        for old in moved.via:
            left_host = old.removeprefix("host.") if old.startswith("host.") else None
            before = replace(known, broker_user=old, host=left_host)
            done, left = await _take_away(settings, pool, before, others.values())
            remarks += done
            if left:
                tell(remarks)
                raise RevocationIncomplete(agent_id, left)
    return remarks


def _user_at(settings: BusSettings, known: Registration, host: str | None, registry: Iterable[Registration]) -> str:
    """Return the broker user of an agent at a place: that of the agents who are there, else as for a new one."""
    if known.host == host:
        return known.broker_user
    there = (one.broker_user for one in registry if host is not None and one.host == host and not one.is_revoked)
    return next(there, user_of_agent(settings, known.agent_id, host))


async def _until_ended(pool: asyncpg.Pool, bus: Bus, moved: Registration, patience: timedelta) -> None:
    """Wait until no delivery is open that went to the old place. Raises ServiceAway."""
    agent_id, waits = moved.agent_id, 0

    async def has_ended() -> bool:
        nonlocal waits
        waits = await count_left_behind(pool, agent_id)
        if moved.host is not None and not waits:
            depth = (await depths_of_inboxes(bus, {agent_id: None})).get(agent_id)
            waits = 0 if depth is None else depth.messages
        return not waits

    if await has_ended():
        return
    try:
        await until(has_ended, patience)
    except TimeoutError as error:
        raise ServiceAway(
            f"the gate delivers to {agent_id} where it {_place(moved.host)}, and after {patience.total_seconds():g} s "
            f"{numbered(waits, 'delivery', 'deliveries')} at its old place did not end: let its old process run, and "
            "repeat the command"
        ) from error


async def _take_away(
    settings: BusSettings, pool: asyncpg.Pool, revoked: Registration, registry: Iterable[Registration]
) -> tuple[Remarks, Remarks]:
    """Take away what an agent logs in with; what was done, and what is left. `registry`: everybody else."""
    if revoked.kind is not Kind.AGENT:  # the users that speak for a person are somebody else's
        return [], []
    others = [one for one in registry if not one.is_revoked and one.kind is Kind.AGENT]
    sharing = [queues_of(one) for one in others if one.broker_user == revoked.broker_user]
    done: Remarks = []
    left: Remarks = []
    user, login = revoked.broker_user, login_of(revoked.agent_id, revoked.host)
    steps = [(f"broker user {user}", partial(cut_off, settings, revoked.agent_id, user, sharing))]
    if revoked.host is None or not any(one.host == revoked.host for one in others):
        steps.append((f"database login {login}", partial(end_agent_login, pool, login, login_owner(revoked))))
    for what, step in steps:
        try:
            done += await step()
        except (ApcError, *DATABASE_AWAY) as error:
            left.append(f"{what}: {first_line(error)}")
    return done, left


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


# `apc agent`: an operator adds and revokes agents; the log records it.

app = Commands(help="Add, revoke, list and show agents.")

_WEIGHT = (
    *("agent_id", "role", "swarm", "is_alive", "waiting", "host", "last_seen", "open", "is_revoked", "rights"),
    "handles",
)

AgentId = Annotated[str, typer.Argument(metavar="ID", help="The agent's id, unique in the deployment.")]
AllowShared = Annotated[
    bool, typer.Option("--allow-shared", help="Let agents of the host judge others of the same host.")
]
Handles = Annotated[str, typer.Option(help="Packet types, separated by commas; control types are always delivered.")]
Speaks = Annotated[
    str, typer.Option(help="Protocol versions that it reads, separated by commas; sessions of tasks need apc/1.1.")
]
BrokerUser = Annotated[
    str | None, typer.Option(help="Its user at the broker; default agent.ID with APC_MANAGEMENT_URL, else our own.")
]
NewAgents = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID | MODULE:AGENT…", help="One id with its options, or agents and teams as `apc up` takes them."
    ),
]
NamesFile = Annotated[
    Path | None,
    typer.Option("--from", metavar="FILE", help="Agents and teams besides, MODULE:AGENT on each line; # is a comment."),
]


@app.command()
async def add(
    agents: NewAgents = None,
    names_from: NamesFile = None,
    role: Annotated[str | None, typer.Option(help="Its role, which its packets must carry.")] = None,
    swarm: Annotated[str | None, typer.Option(help="Its swarm, which its packets must carry.")] = None,
    rights: Annotated[str, typer.Option(help="operate, decide, validate, veto, schedule; separated by commas.")] = "",
    handles: Handles = "",
    speaks: Speaks = "",
    key: Annotated[list[str] | None, typer.Option(metavar="KEY_ID=BASE64", help="A public Ed25519 key.")] = None,
    broker_user: BrokerUser = None,
    host: Annotated[str | None, typer.Option(help="The host in whose process they run; default: own queues.")] = None,
    allow_shared: AllowShared = False,
    person: Annotated[bool, typer.Option("--person", help="Register a person, whom handlers can ask.")] = False,
    via: Annotated[list[str] | None, typer.Option(help="A broker user that speaks for the person; repeatable.")] = None,
) -> None:
    """Declare an agent's queues, make its broker user and register it; repeat it to change.

    MODULE:AGENT takes role, swarm, rights and handled types from the agent's code, and registers the schemas of its
    models; MODULE:TEAM does so for every agent of a team, and registers the file of its contract. An ID takes all this
    from the options. Returns when the registry holds it. With APC_MANAGEMENT_URL the user is created with the least
    rights; its password comes from APC_BROKER_PASSWORDS, or is generated and kept in APC_BROKER_PASSWORDS_FILE.

    With --host the agents share the two queues and the broker user host.HOST: each of them can speak as the others, so
    that one which judges (decide, validate, veto) beside those whom it judges is refused without --allow-shared.

    A client (`client-…`, --swarm clients, no --handles) starts sessions and has no queues. A person (--person --role
    --via) has no queues and no own user; with --rights operate it may act on sessions and dead letters.
    """
    names = [*(agents or ()), *(names_in(names_from) if names_from is not None else ())]
    is_form = any((role, swarm, rights, handles, speaks, key, broker_user))
    if person:
        if len(names) != 1 or not role or any((swarm, handles, speaks, key, broker_user, host, allow_shared)):
            raise typer.BadParameter("give one ID with --person, --role, --via, and --rights operate for an operator")
        tell(await add_person(names[0], role, via or (), rights))
        echo(f"person {names[0]} is registered")
        return
    if via:
        raise typer.BadParameter("--via goes with --person")
    _check_shared(host, allow_shared)
    if names and not is_form and all(":" in name for name in names):
        added = await add_agents_of_code(names, host, allow_shared=allow_shared)
    elif len(names) == 1 and role and swarm:
        version, keys = speaks or PROTOCOL_VERSION, tuple(key or ())
        form = AgentForm(names[0], role, swarm, rights, handles, keys, broker_user, version, host, allow_shared)
        added = await add_agent(form)
    else:
        raise typer.BadParameter("give one ID with --role and --swarm, or MODULE:AGENT… without options")
    tell(added.remarks)
    for sentence in added.sentences:
        echo(sentence)


def _check_shared(host: str | None, allow_shared: bool) -> None:
    if allow_shared and host is None:
        raise typer.BadParameter("--allow-shared goes with --host")


@app.command()
async def revoke(agent_id: AgentId) -> None:
    """Revoke an agent's registration, and delete its broker user and its database login.

    Nothing of it is accepted from now on; its past stays in the log. With APC_MANAGEMENT_URL its broker user is
    deleted, which closes its connections. Its keys are no longer valid. If something of it is left, the command says
    what, and fails; repeating it does no harm.
    """
    tell(await revoke_agent(agent_id))
    echo(f"agent {agent_id} is revoked")


@app.command()
async def move(
    agent_id: AgentId,
    host: Annotated[str | None, typer.Option(help="The host on which it runs from now on.")] = None,
    own_queues: Annotated[
        bool, typer.Option("--own-queues", help="It leaves its host and gets its own queues.")
    ] = False,
    allow_shared: AllowShared = False,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to wait for what is open at the old place.")] = 60,
) -> None:
    """Move an agent to a host, between hosts, or back to its own queues, with its sessions open.

    Start its process at the new place first. From the moment when the log has the change, the gate delivers there; what
    was delivered before is ended by the old process, which must go on. Then its queues, broker user and database login
    of the old place are deleted, and the old process can be stopped. Repeat the command when it was interrupted.
    """
    if (host is None) is not own_queues:
        raise typer.BadParameter("give --host HOST or --own-queues")
    _check_shared(host, allow_shared)
    tell(await move_agent(agent_id, Place(host, allow_shared), timedelta(seconds=patience)))
    echo(f"agent {agent_id} {_place(host)}")


@app.command("list")
async def list_agents(as_json: AsJson = False) -> None:
    """List agents: rights, whether alive, last seen, open deliveries, and messages waiting in their queues.

    Agents of a host share its queues: what waits there is shown for each of them.
    """
    async with open_log() as pool:
        rows = await listed(pool, datetime.now(UTC))
    await _add_waiting(rows)
    print_rows(rows, title="Agents", as_json=as_json, empty="no agent is registered", weight=_WEIGHT)


async def _add_waiting(rows: Sequence[dict[str, Any]]) -> None:
    """Add how many messages wait in each agent's queues, or its host's: None without a broker, or without queues."""
    settings = BusSettings()
    for row in rows:
        row["waiting"] = None
    if settings.amqp_nodes:
        async with open_bus(settings) as bus:
            depths = await depths_of_inboxes(bus, {row["agent_id"]: row["host"] for row in rows})
        for row in rows:
            depth = depths.get(row["agent_id"])
            if depth is not None:
                row["waiting"] = depth.messages


@app.command()
async def show(
    agent_id: AgentId,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show at most this many invocations, newest first.")] = 20,
    contract_file: ContractFile = None,
    as_json: AsJson = False,
) -> None:
    """Show one agent and the state of its latest handler invocations (`intra_agent_coordination`)."""
    contract = load_contract(contract_file)
    async with open_log() as pool:
        agent = next((row for row in await listed(pool, datetime.now(UTC)) if row["agent_id"] == agent_id), None)
        if agent is None:
            raise InputUnusable(f"no agent {agent_id!r} was ever registered: `apc agent list` shows who was")
        invocations = await list_invocations(pool, contract, agent_id, limit=limit)
    await _add_waiting([agent])
    if wants_json(as_json):
        print_json({**agent, "invocations": [asdict(one) for one in invocations]})
        return
    print_rows([agent], title=f"agent {agent_id}", as_json=False, empty="")
    rows = [
        {
            "when": one.last_emission_at,
            "session": one.session_id,
            "cause": one.cause_type,
            "cause_packet_id": one.cause_packet_id,
            "emissions": one.emissions,
            "state": one.state,
            "ended": one.ended,
        }
        for one in invocations
    ]
    title, weight = "handler invocations, the newest first", ("when", "cause", "state", "ended", "cause_packet_id")
    print_rows(rows, title=title, as_json=False, empty="it has emitted nothing yet", weight=weight)


@app.command()
async def schedules(
    agent_id: Annotated[str | None, typer.Argument(metavar="ID", help="Only those of this agent.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the schedules of agents: cron line, time zone, up to when they have fired, and when they fire next."""
    async with open_log() as pool:
        if await pool.fetchval("SELECT to_regclass('apc_app.schedules')") is None:
            raise InputUnusable("this database holds no schedules: run `apc migrate`")
        rows = await list_schedules(pool, agent_id)
    empty, weight = "no agent has a schedule", ("agent_id", "name", "line", "next_at")
    print_rows(rows, title="Schedules", as_json=as_json, empty=empty, weight=weight)

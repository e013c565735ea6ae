"""The registered agents: whether they are alive, when last seen, and what waits for them."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any

import asyncpg
import typer
from pydantic import ValidationError

from apc_agents.scheduling import list_schedules
from apc_agents.team import load_contract_files, load_documents, load_members
from apc_bus.database import DATABASE_AWAY, first_line
from apc_bus.errors import QueueMissing
from apc_bus.port import Bus, QueueDepth
from apc_bus.settings import BusSettings
from apc_bus.topology import agent_queue
from apc_cli.commands.agent_logins import (
    Remarks,
    cut_off,
    end_agent_login,
    make_agent_logins,
    make_agent_users,
    user_of_agent,
)
from apc_cli.commands.group import Commands, ContractFile
from apc_cli.commands.topology import shared_users
from apc_cli.connections import apply, broker_user, open_bus, open_log
from apc_cli.errors import InputUnusable, RevocationIncomplete, ServiceAway
from apc_cli.output.output import AsJson, print_json, print_rows, tell, wants_json
from apc_cli.output.terminal import echo
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
from apc_contracts.contract.contract import load_contract
from apc_contracts.errors import ApcError
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.identity.registry import ANY_SCHEMA, Kind, Registration, voice_objection
from apc_contracts.identity.registry_change import AgentAdded, AgentRevoked
from apc_contracts.vocabulary import CONTROL_TYPES, PROTOCOL_VERSION, PROTOCOL_VERSIONS, PacketType, Right
from apc_log.queries import list_invocations
from apc_log.queries.agents import count_open_deliveries, list_registered
from apc_log.registry import read_registry, registered_agents

ALIVE_WITHIN = timedelta(seconds=90)
"""Three missed heartbeats (docs/specification/agents.md section 1: one after 30 s of silence)."""


async def listed(pool: asyncpg.Pool, now: datetime) -> list[dict[str, Any]]:
    """Return what the log knows about every agent that was ever registered."""
    rows = [dict(row) for row in await list_registered(pool)]
    opened = await count_open_deliveries(pool)
    for row in rows:
        row["is_alive"] = row["last_seen"] is not None and now - row["last_seen"] < ALIVE_WITHIN
        row["open"] = opened.get(row["agent_id"], 0)
    return rows


def inbox_depths(depths: Mapping[str, QueueDepth], agent_id: str) -> list[QueueDepth]:
    """Return the depths of an agent's queues, as far as they exist."""
    queues = (agent_queue(agent_id, urgent) for urgent in (True, False))
    return [depths[queue] for queue in queues if queue in depths]


async def _waiting(bus: Bus, agent_id: str) -> int | None:
    with suppress(QueueMissing):
        return sum([(await bus.depth(agent_queue(agent_id, urgent))).messages for urgent in (True, False)])
    return None


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
    """What was registered: ids of agents, schemas such as finding/1, and names of contracts."""

    agents: list[str]
    remarks: Remarks
    schemas: list[str] = field(default_factory=list)
    contracts: list[str] = field(default_factory=list)

    @property
    def sentences(self) -> list[str]:
        """What to tell the operator, one line each."""
        named = {"agent": self.agents, "schema": self.schemas, "contract": self.contracts}
        return [f"{kind} {name} is registered" for kind, names in named.items() for name in names]


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
    """Register agents, and all agents of teams, as their code describes them, with their schemas and contracts.

    Raises:
        InputUnusable: a schema is unsafe, or registered with other content.
        ContractInvalid: the file of a team's contract cannot be used; names the place.
    """
    settings = BusSettings()
    agents = {place: agent for name in names for place, agent in load_members(name).items()}
    documents, files = load_documents(names), load_contract_files(names)
    described = [agent.registration(user_of_agent(settings, agent.agent_id)) for agent in agents.values()]
    async with open_log() as pool:
        registrations = await with_keys(pool, described)
    remarks = await _add(settings, [addition(registration) for registration in registrations])
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
    for registration in added:
        objection = voice_objection(registration, known, (operator,))
        if objection is not None:
            raise InputUnusable(objection)


async def revoke_agent(agent_id: str) -> Remarks:
    """Revoke an agent, delete its broker user and its database login, and wait until the log has it. Idempotent.

    The registry comes first: whatever the agent does against the other steps, the gate takes nothing of it from then
    on. A step that fails does not keep the next one from being taken.

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
        if changes:
            await publish_changes(bus, changes, settings.shards)
        remarks, left = await _take_away(settings, pool, known, registry.values())
        if not changes:
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
    user, login = revoked.broker_user, f"agent.{revoked.agent_id}"
    for what, step in (
        (f"broker user {user}", partial(cut_off, settings, revoked.agent_id, user, sharing)),
        (f"database login {login}", partial(end_agent_login, pool, revoked.agent_id)),
    ):
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

AgentId = Annotated[str, typer.Argument(metavar="ID", help="The agent's id, unique in the deployment.")]


NewAgents = Annotated[
    list[str],
    typer.Argument(
        metavar="ID | MODULE:AGENT…", help="One id with its options, or agents and teams as `apc up` takes them."
    ),
]


@app.command()
async def add(
    agents: NewAgents,
    role: Annotated[str | None, typer.Option(help="Its role, which its packets must carry.")] = None,
    swarm: Annotated[str | None, typer.Option(help="Its swarm, which its packets must carry.")] = None,
    rights: Annotated[str, typer.Option(help="operate, decide, validate, veto, schedule; separated by commas.")] = "",
    handles: Annotated[
        str, typer.Option(help="Packet types, separated by commas; control types are always delivered.")
    ] = "",
    speaks: Annotated[
        str, typer.Option(help="Protocol versions that it reads, separated by commas; sessions of tasks need apc/1.1.")
    ] = "",
    key: Annotated[list[str] | None, typer.Option(metavar="KEY_ID=BASE64", help="A public Ed25519 key.")] = None,
    broker_user: Annotated[
        str | None,
        typer.Option(help="Its user at the broker; default agent.ID with APC_MANAGEMENT_URL, else our own."),
    ] = None,
    person: Annotated[bool, typer.Option("--person", help="Register a person, whom handlers can ask.")] = False,
    via: Annotated[list[str] | None, typer.Option(help="A broker user that speaks for the person; repeatable.")] = None,
) -> None:
    """Declare an agent's queues, make its broker user and register it; repeat it to change.

    MODULE:AGENT takes role, swarm, rights and handled types from the agent's code, and registers the schemas of its
    models; MODULE:TEAM does so for every agent of a team, and registers the file of its contract. An ID takes all this
    from the options. Returns when the registry holds it. With APC_MANAGEMENT_URL the user is created with the least
    rights; its password comes from APC_BROKER_PASSWORDS, or is generated and kept in APC_BROKER_PASSWORDS_FILE.

    A client (`client-…`, --swarm clients, no --handles) starts sessions and has no queues. A person (--person --role
    --via) has no queues and no own user; with --rights operate it may act on sessions and dead letters.
    """
    if person:
        if len(agents) != 1 or not role or any((swarm, handles, speaks, key, broker_user)):
            raise typer.BadParameter("give one ID with --person, --role, --via, and --rights operate for an operator")
        tell(await add_person(agents[0], role, via or (), rights))
        echo(f"person {agents[0]} is registered")
        return
    if via:
        raise typer.BadParameter("--via goes with --person")
    if not any((role, swarm, rights, handles, speaks, key, broker_user)) and all(":" in agent for agent in agents):
        added = await add_agents_of_code(agents)
    elif len(agents) == 1 and role and swarm:
        form = AgentForm(agents[0], role, swarm, rights, handles, tuple(key or ()), broker_user, speaks or "apc/1.0")
        added = await add_agent(form)
    else:
        raise typer.BadParameter("give one ID with --role and --swarm, or MODULE:AGENT… without options")
    tell(added.remarks)
    for sentence in added.sentences:
        echo(sentence)


@app.command()
async def revoke(agent_id: AgentId) -> None:
    """Revoke an agent's registration, and delete its broker user and its database login.

    Nothing of it is accepted from now on; its past stays in the log. With APC_MANAGEMENT_URL its broker user is
    deleted, which closes its connections. Its keys are no longer valid. If something of it is left, the command says
    what, and fails; repeating it does no harm.
    """
    tell(await revoke_agent(agent_id))
    echo(f"agent {agent_id} is revoked")


@app.command("list")
async def list_agents(as_json: AsJson = False) -> None:
    """List agents: rights, whether alive, last seen, open deliveries, and messages waiting in their queues."""
    settings = BusSettings()
    async with open_log() as pool:
        rows = await listed(pool, datetime.now(UTC))
    for row in rows:
        row["waiting"] = None
    if settings.amqp_nodes:
        async with open_bus(settings) as bus:
            for row in rows:
                row["waiting"] = await _waiting(bus, row["agent_id"])
    least = ("keys", "broker_user", "rights", "handles")
    print_rows(rows, title="Agents", as_json=as_json, empty="no agent is registered", least=least)


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
    print_rows(rows, title="handler invocations, the newest first", as_json=False, empty="it has emitted nothing yet")


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
    print_rows(rows, title="Schedules", as_json=as_json, empty="no agent has a schedule")

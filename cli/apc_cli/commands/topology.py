"""`apc topology`: show, declare or export what is in the broker; `apc shard`: who holds each shard and where it is."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import asyncpg
import typer

from apc_agents.team import load_agent
from apc_bus.database import DATABASE_AWAY, connect, first_line
from apc_bus.errors import QueueMissing
from apc_bus.port import Bus, QueueDepth
from apc_bus.rabbit import export_definitions
from apc_bus.rabbit.definitions import permissions
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_bus.settings.database import HOME
from apc_bus.settings.services import ORCHESTRATOR_NAME
from apc_bus.topology import Topology, gate_queue, log_queue
from apc_cli.commands.agent_logins import complete_passwords, given_passwords, make_users
from apc_cli.commands.group import Commands
from apc_cli.connections import ONE_PROCESS, PATIENCE, open_bus, open_log, planned_topology, require_broker
from apc_cli.connections import apply as apply_topology
from apc_cli.errors import InputUnusable, ServiceAway
from apc_cli.output.files import write_output
from apc_cli.output.output import AsJson, print_json, print_rows, tell, to_json
from apc_cli.output.terminal import echo
from apc_contracts.text import numbered, some_of
from apc_log.placement import (
    DatabasePlace,
    HeldShard,
    LogDatabases,
    check_places,
    move_shard,
    open_databases,
    read_database_places,
    read_held_shards,
    read_moved_shards,
    read_open_sessions,
)
from apc_persister.database import several


async def exported(vhost: str, modules: Sequence[str], file: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Return the definitions, and remarks for the operator.

    Args:
        modules: `module:agent` of agents that are not registered yet.
        file: passwords, completed and hashed; None = those of the environment alone.

    Raises:
        InputUnusable: passwords that cannot be used. ModuleUnusable, AgentNotFound. TopologyInvalid.
        ShardsDiffer: sessions are open that another number of shards has placed: nobody asks when they are imported.
    """
    await _check_places()
    topology = await planned_topology([load_agent(module).queues() for module in modules])
    users = list(permissions(topology))
    made: list[str] = []
    passwords = given_passwords()
    if file is not None:
        passwords, made = complete_passwords(users, file)
    remarks = [f"made passwords for {', '.join(made)}: they are in {file}"] if made else []
    locked = [user for user in users if user not in passwords]
    if locked:
        remarks.append(f"without a password, so they cannot log in: {', '.join(locked)}")
    definitions = export_definitions(topology, vhost=vhost, passwords=passwords)
    return definitions, [*remarks, *shared_users(topology)]


async def _check_places() -> None:
    if DatabaseSettings().database_url is not None:
        async with open_log(is_home_alone=True) as pool:
            check_places(await read_open_sessions(pool), BusSettings().shards)


def shared_users(topology: Topology) -> Iterator[str]:
    """Yield a sentence for each broker user of several agents, but for those of hosts, whose purpose that is."""
    sharing: dict[str, list[str]] = {}
    for agent in topology.agents:
        if agent.user != f"host.{agent.host}":
            sharing.setdefault(agent.user, []).append(agent.agent_id)
    for user, agents in sharing.items():
        if len(agents) > 1:
            yield f"agents {some_of(agents)} share the broker user {user}: each can speak as the others"


app = Commands(help="Show, declare or export the broker's topology.")


@app.command()
async def show(as_json: AsJson = False) -> None:
    """Print the topology: APC_SHARDS shards, and the registered agents when APC_DATABASE_URL is set."""
    keys = ("exchange", "kind", "routing_key", "queue")
    rows = [dict(zip(keys, row, strict=True)) for row in (await planned_topology()).rows()]
    print_rows(rows, title="Topology", as_json=as_json, empty="nothing", least=("kind",))


@app.command()
async def apply() -> None:
    """Declare the topology on the broker, as the deploy-time user of APC_TOPOLOGY_URL (default APC_AMQP_URL).

    With APC_MANAGEMENT_URL the users of the services and of the registered agents are created too, with the least
    rights.
    """
    topology = await planned_topology()
    await apply_topology(topology)
    tell(await make_users(BusSettings(), topology))
    echo(
        f"declared {numbered(len(topology.exchanges), 'exchange')}, {numbered(len(topology.queues), 'queue')}, "
        f"{numbered(len(topology.bindings), 'binding')} for {numbered(topology.shards, 'shard')} "
        f"and {numbered(len(topology.agents), 'agent')}"
    )


@app.command()
async def export(
    out: Annotated[Path, typer.Option(help="The file; - is standard output.")] = Path("-"),
    vhost: Annotated[str, typer.Option(help="The virtual host of everything in the file.")] = "/",
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:AGENT", help="An agent that is not registered yet; its user is agent.<id>."),
    ] = None,
    passwords: Annotated[
        Path | None,
        typer.Option(help="JSON file (mode 0600), user -> password: hashed; missing ones are generated and added."),
    ] = None,
) -> None:
    """Write RabbitMQ definitions (`load_definitions`): a user with the least rights for each service and agent.

    Without --passwords only the users of APC_BROKER_PASSWORDS get one; the others cannot log in until `rabbitmqctl
    change_password`.
    """
    definitions, remarks = await exported(vhost, agent or (), passwords)
    write_output(out, to_json(definitions) + b"\n")
    tell(remarks)


# `apc shard`: which orchestrator holds each shard, and giving a shard to another one while it works.

shards_app = Commands(help="Shards: who holds each, where its log is, and moving one.")

LOOK_SECONDS = 0.1
_LEAST = ("queue", "moved_to", "database")
_NOT_MOVED = (
    "shard {shard} was given to {taker}, which did not take it within {seconds:g} s: {holder} holds it and goes on. "
    "{taker} takes it as soon as it runs; `apc shard free {shard}` takes the order back"
)

ShardNumber = Annotated[int, typer.Argument(metavar="SHARD", min=0, help="The shard's number.")]


@asynccontextmanager
async def _open_each() -> AsyncIterator[tuple[asyncpg.Pool, LogDatabases]]:
    """Yield a pool of home, and one of each database."""
    others = DatabaseSettings().other_urls
    async with open_log(is_home_alone=True) as pool, open_databases(pool, others, max_size=1) as databases:
        yield pool, databases


@shards_app.command("list")
async def list_shards(as_json: AsJson = False) -> None:
    """Print each shard: its queue, who holds it, since which epoch, its database, open sessions and waiting inputs.

    State: served; moving (another orchestrator holds it than the one it was given to, or its log is on the way to
    another database); without a gate; away (its database does not answer).
    """
    settings = BusSettings()
    async with (
        open_log(is_home_alone=True) as pool,
        open_databases(pool, DatabaseSettings().other_urls, max_size=1) as databases,
    ):
        held, away = await _held_shards(databases)
        places = await read_database_places(pool)
    depths = await _depths(settings)
    rows = [
        _row(shard, held.get(shard), depths.get(shard), places.get(shard, DatabasePlace()), away)
        for shard in range(settings.shards)
    ]
    print_rows(rows, title="shards", as_json=as_json, empty="there is no shard", least=_LEAST)


@shards_app.command()
async def place(
    shard: ShardNumber,
    database: Annotated[str, typer.Option("--database", metavar="NAME", help="Its name in APC_DATABASES, or home.")],
) -> None:
    """Place a shard without entries in a database, as its owner. Repeat it when it was interrupted."""
    _settings_of(shard)
    async with _owned_databases(database) as databases:
        before = await several.place_shard(databases, shard, database, DatabaseSettings().other_urls)
    echo(f"shard {shard} is in {database}" + ("" if before == database else f", and was in {before}"))


@asynccontextmanager
async def _owned_databases(name: str) -> AsyncIterator[several.Databases]:
    """Yield a connection to each database, as its owner.

    Raises:
        InputUnusable: no database has the name, or the user may not do it.
        ServiceAway: one does not answer.
    """
    settings = DatabaseSettings()
    if settings.url is None:
        raise InputUnusable("set APC_DATABASE_URL: the embedded PostgreSQL has every shard")
    urls = {HOME: settings.url, **settings.other_urls}
    if name not in urls:
        raise InputUnusable(f"--database {name!r}: APC_DATABASES names {some_of([*urls])}")
    async with AsyncExitStack() as stack:
        databases: dict[str, asyncpg.Connection] = {}
        for one, url in urls.items():
            try:
                databases[one] = await connect(url, patience=PATIENCE.total_seconds())
                stack.push_async_callback(databases[one].close)
                await several.check_name(databases[one], one)
            except DATABASE_AWAY as error:
                raise ServiceAway(f"database {one!r} does not answer: {first_line(error)}") from error
        try:
            yield databases
        except asyncpg.InsufficientPrivilegeError as error:
            raise InputUnusable(
                f"this needs the owner of the log in each database ({first_line(error)}): use the URLs of `apc migrate`"
            ) from error


@shards_app.command()
async def move(
    shard: ShardNumber,
    to: Annotated[
        str | None, typer.Option("--to", metavar="ORCHESTRATOR", help="The name of the orchestrator.")
    ] = None,
    database: Annotated[
        str | None, typer.Option("--database", metavar="NAME", help="Its name in APC_DATABASES, or home.")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="With --database: public key (`apc log key`); else the log's own.")
    ] = None,
    patience: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait for each that must act.")] = 60,
    as_json: AsJson = False,
) -> None:
    """Give a shard to another orchestrator, which runs already, or move its log to another database.

    The one that has it judges what has come, delivers it and leaves; the next epoch fences it. Nothing is lost. A move
    to another database takes its owner; what was interrupted goes on when it is repeated.
    """
    require_broker(_settings_of(shard), ONE_PROCESS)
    if (to is None) == (database is None):
        raise InputUnusable("give either --to ORCHESTRATOR or --database NAME")
    if database is not None:
        return await _move_log(shard, database, key or (), patience)
    assert to is not None
    began = monotonic()
    async with (
        open_log(is_home_alone=True) as pool,
        open_databases(pool, DatabaseSettings().other_urls, max_size=1) as databases,
    ):
        before = (await _held_shards(databases))[0].get(shard)
        await _place(pool, shard, to)
        found = await _until_taken(databases, shard, to, patience)
    done = {"shard": shard, "orchestrator": to, "epoch": found.epoch, "from": before and before.orchestrator}
    if as_json:
        print_json(done | {"seconds": round(monotonic() - began, 3)})
    elif before is not None and before.epoch == found.epoch:
        echo(f"{to} holds shard {shard} already, with epoch {found.epoch}")
    else:
        echo(f"{to} has taken shard {shard} with epoch {found.epoch}, after {monotonic() - began:.1f} s")


async def _move_log(shard: int, database: str, keys: Sequence[str], patience: float) -> None:
    from apc_cli.commands.log_verification import TrustedKeys  # loads the archive

    began, trusted = monotonic(), tuple(TrustedKeys(keys).all_of(shard))
    async with _owned_databases(database) as databases, open_bus(BusSettings()) as bus:
        move = several.Move(databases, shard, database, trusted, patience, DatabaseSettings().other_urls)
        before = await move.run(lambda: _until_left(bus, shard, patience))
    if before == database:
        echo(f"shard {shard} is in {database}")
    else:
        echo(f"shard {shard} has moved from {before} to {database}, after {monotonic() - began:.1f} s")


async def _until_left(bus: Bus, shard: int, patience: float) -> None:
    """Wait until no orchestrator serves a shard and its log batches are written. Raises ServiceAway."""
    until = monotonic() + patience
    while True:
        gate, batches = await bus.depth(gate_queue(shard)), await bus.depth(log_queue(shard))
        if not gate.consumers and not batches.messages:
            return
        if monotonic() > until:
            what = (
                "an orchestrator still serves it: is it of this release, with APC_DATABASES?" if gate.consumers else ""
            )
            what = what or f"{numbered(batches.messages, 'log batch', 'log batches')} wait: start a log writer"
            raise ServiceAway(f"shard {shard} stays where it is: {what}")
        await asyncio.sleep(LOOK_SECONDS)


@shards_app.command()
async def free(shard: ShardNumber) -> None:
    """Take back what `apc shard move` said: it is of the one that the settings name, or that comes first."""
    _settings_of(shard)
    async with open_log(is_home_alone=True) as pool:
        await _place(pool, shard, None)
    echo(f"shard {shard} is given to nobody in particular")


def _settings_of(shard: int) -> BusSettings:
    """Return the settings. Raises InputUnusable for a shard that they do not have."""
    settings = BusSettings()
    if shard >= settings.shards:
        raise InputUnusable(f"APC_SHARDS={settings.shards} makes the shards 0 to {settings.shards - 1}, and no {shard}")
    return settings


async def _held_shards(databases: LogDatabases) -> tuple[dict[int, HeldShard], set[str]]:
    """Return who holds each shard by the database that has it, and the databases that do not answer."""
    await databases.look()
    given = await read_moved_shards(databases.home)
    found: dict[int, HeldShard] = {}
    away = set[str]()
    for name, pool in databases.pools.items():
        try:
            held = await read_held_shards(pool)
        except DATABASE_AWAY:
            if name == HOME:
                raise
            away.add(name)
            continue
        here = {shard: one for shard, one in held.items() if databases.place_of(shard).database == name}
        found |= {shard: replace(one, moved_to=given.get(shard)) for shard, one in here.items()}
    return found, away


def _row(
    shard: int, held: HeldShard | None, depth: QueueDepth | None, place: DatabasePlace, away: Collection[str]
) -> dict[str, Any]:
    holder, moved_to = (held.orchestrator, held.moved_to) if held else (None, None)
    if place.database in away:
        state = "away"
    elif place.moving_to is not None:
        state = "moving"
    elif depth is not None and not depth.consumers:
        state = "without a gate"
    elif held is None or not held.epoch:
        state = "never served"
    else:
        state = "moving" if moved_to not in (None, holder) else "served"
    return {
        "shard": shard,
        "queue": gate_queue(shard),
        "orchestrator": holder or "",
        "moved_to": moved_to or "",
        "database": place.database + (f" -> {place.moving_to}" if place.moving_to else ""),
        "epoch": held.epoch if held else 0,
        "state": state,
        "open_sessions": held.open_sessions if held else 0,
        "depth": "" if depth is None else depth.messages,
    }


async def _depths(settings: BusSettings) -> dict[int, QueueDepth]:
    """Return how many inputs wait in each shard; nothing for a system without a broker."""
    if not settings.amqp_nodes:
        return {}
    async with open_bus(settings) as bus:
        found = {shard: await _depth(bus, gate_queue(shard)) for shard in range(settings.shards)}
    return {shard: depth for shard, depth in found.items() if depth is not None}


async def _depth(bus: Bus, queue: str) -> QueueDepth | None:
    try:
        return await bus.depth(queue)
    except QueueMissing:
        return None


async def _place(pool: asyncpg.Pool, shard: int, taker: str | None) -> None:
    try:
        await move_shard(pool, shard, taker)
    except asyncpg.CheckViolationError as error:
        raise InputUnusable(f"--to {taker!r} cannot be the name of an orchestrator: {ORCHESTRATOR_NAME}") from error
    except asyncpg.InsufficientPrivilegeError as error:
        raise InputUnusable(
            f"the database does not let this user move shards ({error}): an administrator of it grants it the role "
            "apc_mover"
        ) from error


async def _until_taken(databases: LogDatabases, shard: int, taker: str, seconds: float) -> HeldShard:
    until = monotonic() + seconds
    while True:
        held = (await _held_shards(databases))[0].get(shard)
        if held is not None and held.orchestrator == taker:
            return held
        if monotonic() >= until:
            holder = (held and held.orchestrator) or "nobody"
            raise ServiceAway(_NOT_MOVED.format(shard=shard, taker=taker, seconds=seconds, holder=holder))
        await asyncio.sleep(LOOK_SECONDS)

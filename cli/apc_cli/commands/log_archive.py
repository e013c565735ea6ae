"""`apc log segments`, `archive`, `restore` and `hold`: how the log ages, and what stays."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import asyncpg
import typer

from apc_bus.settings import ArchiveSettings
from apc_bus.settings.database import HOME
from apc_cli.commands.group import Commands
from apc_cli.connections import LONGEST_STATEMENT, connect_databases, in_each_database, open_log
from apc_cli.errors import InputUnusable, ServiceAway
from apc_cli.output.output import AsJson, print_json, print_rows
from apc_cli.output.terminal import echo
from apc_cli.system.running import stop_on_signals
from apc_log.archive import Archive
from apc_log.heads import AnyConnection, log_name_of, origin_of
from apc_persister.ageing import (
    Ageing,
    Policy,
    Step,
    hold,
    lift_hold,
    list_holds,
    list_segments,
    load_policy,
    names_something,
)
from apc_persister.archiving import drop_restored, restore_segment

INTERVAL = timedelta(minutes=1)
"""Between two looks of `apc log archive`."""
MOST_REASON = 300
"""Characters that the guard takes."""
_RIGHTS = "the database's user {user} may not: grant it apc_archiver"

ShardOption = Annotated[int | None, typer.Option("--shard", min=0, help="Of this shard alone.")]


@asynccontextmanager
async def _as_archiver(shard: int | None = None) -> AsyncIterator[Mapping[str, AnyConnection]]:
    async with connect_databases(LONGEST_STATEMENT, shard) as databases:
        async with _archiver_alone(next(iter(databases.values()))):
            yield databases


@asynccontextmanager
async def _archiver_alone(connection: AnyConnection) -> AsyncIterator[None]:
    """Say in clear words what only a member of apc_archiver may."""
    try:
        yield
    except asyncpg.InsufficientPrivilegeError as error:
        user = await connection.fetchval("SELECT session_user")
        raise ServiceAway(f"{_RIGHTS.format(user=user)} ({str(error).splitlines()[0]})") from error
    except asyncpg.InvalidParameterValueError as error:
        raise InputUnusable(str(error)) from error


def add_to(app: Commands) -> None:
    """Add these commands to `apc log`."""
    app.command()(segments)
    app.command()(archive)
    app.command()(restore)
    app.add_typer(holds, name="hold")


async def segments(shard: ShardOption = None, as_json: AsJson = False) -> None:
    """Print the segments of the log: range, state, what keeps each in the database, sizes, age."""
    rows: list[dict[str, Any]] = []

    async def add(name: str, pool: asyncpg.Pool, url: str) -> None:
        rows.extend(dict(row) for row in await list_segments(pool, shard))

    away = await in_each_database(add, LONGEST_STATEMENT)
    rows.sort(key=lambda row: (row["shard"], row["first_seq"]))
    shown = []
    for row in rows:
        row["age"] = "" if row["full_since"] is None else _age(datetime.now(UTC) - row["full_since"])
        names = ("shard", "first_seq", "last_seq", "state", "age", "open_sessions", "holds")
        of_row = {name: row[name] for name in names}
        sizes = {"database": _size(row["hot_bytes"]), "archive": _size(row["archived_bytes"])}
        shown.append(of_row | sizes)
    print_rows(shown, title="segments", as_json=as_json, empty="the log has no entry", document=rows)
    if away is not None:
        raise away


def _size(size: int | None) -> str:
    """Return bytes with three digits and a unit; nothing for None."""
    if size is None:
        return ""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 10**power:
            return f"{size / 10**power:.3g} {unit}"
    return f"{size} B"


def _age(age: timedelta) -> str:
    if age.days:
        return f"{age.days} d"
    hours = age.seconds // 3600
    return f"{hours} h" if hours else f"{age.seconds // 60} min"


async def archive(
    once: Annotated[bool, typer.Option("--once", help="Look once, then end.")] = False, as_json: AsJson = False
) -> None:
    """Archive full segments, record them, and let go of what APC_ARCHIVE_POLICY allows; until SIGTERM.

    The database's user is a member of apc_archiver. A segment that is written when the process ends is taken up again.
    """
    settings = ArchiveSettings()
    policy = load_policy(settings.archive_policy, timedelta(days=settings.hot_days))
    stop = stop_on_signals()
    while not stop.is_set():
        looked = _Looked(settings, policy, as_json)
        away = await in_each_database(looked.add, LONGEST_STATEMENT)
        if not looked.has_checkpoint and away is None:
            raise InputUnusable("the log has no checkpoint yet: start the log writer")
        if away is not None:
            raise away
        if once:
            if not looked.steps and not as_json:
                echo(why_nothing(looked.segments, policy))
            return
        try:
            await asyncio.wait_for(stop.wait(), INTERVAL.total_seconds())
        except TimeoutError:
            pass


@dataclass(slots=True)
class _Looked:
    """What a look at the databases has done."""

    settings: ArchiveSettings
    policy: Policy
    as_json: bool
    steps: int = 0
    has_checkpoint: bool = False
    segments: list[dict[str, Any]] = field(default_factory=list)

    async def add(self, name: str, pool: asyncpg.Pool, url: str) -> None:
        """Let the segments of a database age."""
        async with pool.acquire() as connection, _archiver_alone(connection):
            log_name = await log_name_of(connection)
            if log_name is None:
                return
            self.has_checkpoint = True
            ageing = Ageing(connection, Archive.open(self.settings, log_name), self.policy)
            async for step in ageing.run():
                self.steps += 1
                _tell(step, self.as_json)
            if ageing.unknown:
                said = ", ".join(sorted(ageing.unknown))
                echo(f"apc: APC_ARCHIVE_POLICY names contracts that {name} has not: {said}", file=sys.stderr)
            self.segments += [dict(one) for one in await list_segments(connection)]


def why_nothing(segments: Sequence[Mapping[str, Any]], policy: Policy) -> str:
    """Return which segments there are, and when something will be done to the first of them."""
    states = Counter(str(one["state"]) for one in segments)
    nothing = f"no segment is full, or old enough ({', '.join(f'{count} {state}' for state, count in states.items())})"
    here = [one for one in segments if one["state"] not in ("released", "expired")]
    if not here:
        return nothing
    full = here[0]["full_since"]
    place = f"shard {here[0]['shard']}, entries {here[0]['first_seq']} to {here[0]['last_seq']}"
    if full is None:
        return f"{nothing}: {place}, is the next to be full"
    if policy.release_after is None:
        return f"{nothing}: APC_ARCHIVE_POLICY releases none"
    since, then = (f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC" for at in (full, full + policy.release_after))
    return f"{nothing}: {place}, full since {since}, may be released from {then} on"


def _tell(step: Step, as_json: bool) -> None:
    if as_json:
        print_json(
            {"shard": step.shard, "first_seq": step.first, "last_seq": step.last}
            | {"done": step.done, "detail": step.detail}
        )
    else:
        echo(f"shard {step.shard}, entries {step.first} to {step.last}: {step.done} ({step.detail})")


async def restore(
    shard: Annotated[int, typer.Option("--shard", min=0, help="Of this shard.")] = 0,
    segment: Annotated[
        int | None, typer.Option("--segment", min=1, help="Its first entry, as `apc log segments` prints it.")
    ] = None,
    drop: Annotated[bool, typer.Option("--drop", help="Drop everything that was restored.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the rows of an archived segment into tables beside the log, in schema apc_restored, to be read by SQL.

    The tables are like the log's and no part of it; a second run replaces the segment's rows. Its objects are compared
    with the tree first. The database's user is a member of apc_archiver.
    """
    if (segment is None) != drop:
        raise InputUnusable("name a segment with --segment, or drop what was restored with --drop")
    async with _as_archiver(None if segment is None else shard) as databases:
        if segment is None:
            freed = sum([await drop_restored(database) for database in databases.values()])
            if as_json:
                print_json({"freed_bytes": freed})
            else:
                echo(f"dropped: {_size(freed)} are free again")
            return
        ((name, database),) = databases.items()
        log_name = (await origin_of(database, shard)).rpartition("/")[0]
        done = await restore_segment(database, Archive.open(ArchiveSettings(), log_name), shard, segment)
    if as_json:
        print_json(
            {"shard": shard, "first_seq": done.first, "last_seq": done.last, "rows": done.rows, "bytes": done.bytes}
        )
    else:
        where = "schema apc_restored" if name == HOME else f"schema apc_restored of database {name}"
        echo(f"shard {shard}, entries {done.first} to {done.last}: {done.rows:,} rows are in {where}")
        echo(f"They take {_size(done.bytes)} of the database: `apc log restore --drop` frees it.")


# `apc log hold`.

holds = Commands(help="Holds: what stays in the database whatever its age.")


@holds.command()
async def add(
    reason: Annotated[str, typer.Option(help="Why, in a line: it stands in the log.")],
    session: Annotated[str | None, typer.Option(help="Hold this session.")] = None,
    run: Annotated[str | None, typer.Option(help="Hold every session of this run.")] = None,
    contract: Annotated[str | None, typer.Option(help="Hold what this contract judged: its SHA-256, in hex.")] = None,
    until: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Day on which it ends, UTC.")] = None,
) -> None:
    """Hold a session, a run or what a contract judged; an entry of every shard tells of it."""
    if (session is not None) + (run is not None) + (contract is not None) != 1:
        raise InputUnusable("name one of --session, --run and --contract")
    try:
        hash_ = None if contract is None else bytes.fromhex(contract)
    except ValueError:
        raise InputUnusable(f"--contract {contract}: give its SHA-256 as 64 hex digits") from None
    day = None if until is None else until.replace(tzinfo=UTC)
    if not 1 <= len(reason) <= MOST_REASON:
        raise InputUnusable(f"--reason: write 1 to {MOST_REASON} characters")
    if day is not None and day <= datetime.now(UTC):
        raise InputUnusable(f"--until {day:%Y-%m-%d}: give a day that is to come, UTC")
    async with _as_archiver() as found:
        databases = list(found.values())
        is_known = any([await names_something(one, session=session, run=run, contract=hash_) for one in databases])
        echo(str(await hold(databases, reason, session=session, run=run, contract=hash_, until=day)))
    if not is_known:
        echo(f"apc: the log has no {_named(session, run)} yet: it is held from its first entry on", file=sys.stderr)


def _named(session: str | None, run: str | None) -> str:
    return f"session {session!r}" if session is not None else f"run {run!r}" if run is not None else "such contract"


@holds.command("list")
async def show(as_json: AsJson = False) -> None:
    """Print every hold, also those that are over."""
    async with open_log() as pool:
        rows: list[dict[str, Any]] = [dict(row) for row in await list_holds(pool)]
    shown = [
        {"hold_id": row["hold_id"], "holds": _held(row), "reason": row["reason"], "state": row["state"]}
        | {"until": "" if row["until"] is None else f"{row['until']:%Y-%m-%d}"}
        | {"since": f"{row['since']:%Y-%m-%d}", "actor": row["actor"]}
        for row in rows
    ]
    least = ("actor", "since", "state", "until")
    print_rows(shown, title="holds", as_json=as_json, empty="nothing is held", least=least, document=rows)


def _held(row: dict[str, Any]) -> str:
    if row["contract_hash"] is not None:
        return f"contract {row['contract_hash'][:12]}…"
    return f"session {row['session_id']}" if row["run_id"] is None else f"run {row['run_id']}"


@holds.command()
async def lift(held: Annotated[UUID, typer.Argument(metavar="HOLD", help="The hold's id.")]) -> None:
    """End a hold; an entry of every shard tells of it."""
    async with _as_archiver() as databases:
        await lift_hold(list(databases.values()), held)
    echo(f"hold {held} is lifted")

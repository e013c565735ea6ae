"""`apc log segments`, `archive` and `hold`: how the log ages, and what stays."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import asyncpg
import typer

from apc_bus.settings import ArchiveSettings
from apc_cli.commands.group import Commands
from apc_cli.connections import open_log
from apc_cli.errors import InputUnusable, ServiceAway
from apc_cli.output.output import AsJson, print_json, print_rows
from apc_cli.output.terminal import echo
from apc_cli.system.running import stop_on_signals
from apc_log.archive import Archive, read_log_name
from apc_log.heads import AnyConnection
from apc_persister.ageing import Ageing, Step, load_policy

INTERVAL = timedelta(minutes=1)
"""Between two looks of `apc log archive`."""
_SEGMENTS = """
SELECT segment.shard, first_seq, last_seq, segment.state, record_seq,
       (manifest ->> 'bytes')::bigint AS archived_bytes, (
    SELECT recorded_at FROM apc_log.log_checkpoints AS note
    WHERE note.shard = segment.shard AND tree_size >= last_seq ORDER BY tree_size LIMIT 1
) AS full_since, (
    SELECT count(*) FROM apc_log.sessions AS session
    WHERE session.shard = segment.shard AND is_open AND coalesce(session.first_seq, 0) <= segment.last_seq
) AS open_sessions, (
    SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relnamespace = 'apc_log'::regnamespace
       AND relname ~ ('^[a-z_]+_' || segment.shard || '_' || first_seq || '(_thin)?$') AND relkind = 'r'
) AS hot_bytes
FROM apc_log.segments AS segment JOIN apc_log.shards USING (shard)
WHERE ($1::integer IS NULL OR segment.shard = $1) AND first_seq < next_seq ORDER BY segment.shard, first_seq
"""
_HOLDS = """
SELECT hold_id::text, session_id, run_id, encode(contract_hash, 'hex') AS contract_hash, reason, actor, since, until,
       CASE WHEN is_in_force THEN 'in force' WHEN lifted_at IS NOT NULL THEN 'lifted' ELSE 'over' END AS state
FROM apc_log.holds ORDER BY since
"""
_HOLD = "SELECT apc_guard.hold($1, $2, $3, $4, $5)"
_LIFT = "SELECT apc_guard.lift_hold($1)"
_RIGHTS = "the database's user {user} may not: grant it apc_archiver"

ShardOption = Annotated[int | None, typer.Option("--shard", min=0, help="Of this shard alone.")]


@asynccontextmanager
async def _as_archiver() -> AsyncIterator[AnyConnection]:
    async with open_log() as pool, pool.acquire() as connection:
        try:
            yield connection
        except asyncpg.InsufficientPrivilegeError as error:
            user = await pool.fetchval("SELECT current_user")
            raise ServiceAway(f"{_RIGHTS.format(user=user)} ({str(error).splitlines()[0]})") from error
        except asyncpg.InvalidParameterValueError as error:
            raise InputUnusable(str(error)) from error


def add_to(app: Commands) -> None:
    """Add these commands to `apc log`."""
    app.command()(segments)
    app.command()(archive)
    app.add_typer(holds, name="hold")


async def segments(shard: ShardOption = None, as_json: AsJson = False) -> None:
    """Print the segments of the log: range, state, what keeps each in the database, sizes, age."""
    async with open_log() as pool:
        rows = [dict(row) for row in await pool.fetch(_SEGMENTS, shard)]
    for row in rows:
        row["age"] = "" if row["full_since"] is None else _age(datetime.now(UTC) - row["full_since"])
    print_rows(
        rows, title="segments", as_json=as_json, empty="the log has no entry", least=("record_seq", "full_since")
    )


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
        found = 0
        async with _as_archiver() as connection:
            store = Archive.open(settings, await read_log_name(connection))
            async for step in Ageing(connection, store, policy).run():
                found += 1
                _tell(step, as_json)
        if once:
            if not found and not as_json:
                echo("no segment is full, or old enough")
            return
        try:
            await asyncio.wait_for(stop.wait(), INTERVAL.total_seconds())
        except TimeoutError:
            pass


def _tell(step: Step, as_json: bool) -> None:
    if as_json:
        print_json(
            {"shard": step.shard, "first_seq": step.first, "last_seq": step.last}
            | {"done": step.done, "detail": step.detail}
        )
    else:
        echo(f"shard {step.shard}, entries {step.first} to {step.last}: {step.done} ({step.detail})")


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
    async with _as_archiver() as connection:
        day = None if until is None else until.replace(tzinfo=UTC)
        echo(str(await connection.fetchval(_HOLD, session, run, hash_, reason, day)))


@holds.command("list")
async def list_holds(as_json: AsJson = False) -> None:
    """Print every hold, also those that are over."""
    async with open_log() as pool:
        rows: list[dict[str, Any]] = [dict(row) for row in await pool.fetch(_HOLDS)]
    print_rows(rows, title="holds", as_json=as_json, empty="nothing is held", least=("actor", "since"))


@holds.command()
async def lift(hold: Annotated[UUID, typer.Argument(metavar="HOLD", help="The hold's id.")]) -> None:
    """End a hold; an entry of every shard tells of it."""
    async with _as_archiver() as connection:
        await connection.execute(_LIFT, hold)
    echo(f"hold {hold} is lifted")

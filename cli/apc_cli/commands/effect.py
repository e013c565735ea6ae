"""`apc effect`: show effects, as their agents keep them and as the log has them, and settle one."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import asyncpg
import orjson
import typer
from pydantic import JsonValue

from apc_agents.effect_maker import effect_report
from apc_agents.effects import EffectId, EffectRecord, EffectState, EffectStore, PostgresEffectStore
from apc_bus import headers
from apc_bus.errors import BusError
from apc_bus.port import Message, Publication
from apc_bus.settings import BusSettings
from apc_bus.topology import RECEIPTS
from apc_cli.commands.group import Commands, whole_packet_id, whole_session_id
from apc_cli.connections import Door, find_door, open_log
from apc_cli.errors import InputUnusable, ServiceAway
from apc_cli.output.output import AsJson, print_rows, tell
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.wire.receipts import EffectEntry, Receipt, ReceiptKind, encode_receipts
from apc_log.placement import read_shard
from apc_log.queries import LoggedEffect, effects_of, packet_effects, session_effects

OPERATOR = "operator"
_SHOWN = ("packet_id", "agent_id", "key", "state", "claimed_at", "worker", "problem", "settled_by", "log")
_WEIGHT = ("packet_id", "state", "agent_id", "key", "problem", "claimed_at")
_LOGGED = ("at", "key", "entry", "actor", "reference", "note", "digest")


@asynccontextmanager
async def _open_effects() -> AsyncIterator[tuple[PostgresEffectStore, asyncpg.Pool]]:
    async with open_log() as pool:
        if await pool.fetchval("SELECT to_regclass('apc_app.agent_effects')") is None:
            raise InputUnusable("this database holds no effects: run `apc migrate`")
        yield PostgresEffectStore(pool, is_patient=False), pool


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InputUnusable(f"--result {text!r} is no JSON: {error}; a text wants quotes, '\"so\"'") from error


def _uuid(packet_id: str) -> UUID:
    try:
        return UUID(packet_id)
    except ValueError as error:
        raise InputUnusable(f"{packet_id!r} is no packet_id: `apc effect list` shows those there are") from error


def _state(text: str) -> EffectState:
    try:
        return EffectState(text.upper())
    except ValueError as error:
        raise InputUnusable(f"{text!r} is no state of an effect: use one of {', '.join(EffectState)}") from error


# `apc effect`: side effects that handlers run once, and an operator's decision about unknown ones.

app = Commands(help="Effects that handlers make once (ctx.once).")


@app.command("list")
async def list_(
    agent_id: Annotated[str | None, typer.Option("--agent", help="Only effects of this agent.")] = None,
    packet_id: Annotated[
        str | None, typer.Option("--packet", help="Only effects for this packet.", parser=whole_packet_id)
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only effects in this state: RUNNING, UNKNOWN, RESULT_LOST, MADE; repeatable."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Print at most this many effects.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print what agents keep of effects, newest first, and where they stand by the log."""
    known = None if not state else [_state(one) for one in state]
    packet = None if packet_id is None else _uuid(packet_id)
    async with _open_effects() as (store, pool):
        records = await store.list(agent_id=agent_id, packet_id=packet, states=known, limit=limit)
        logged = await effects_of(pool, {(one.session_id, one.effect_id.packet_id) for one in records})
    documents = [_document(one, logged.get((one.session_id, one.effect_id.packet_id), ())) for one in records]
    rows = [{name: document[name] for name in _SHOWN} for document in documents]
    empty = "there is no such effect"
    print_rows(rows, title="effects", as_json=as_json, empty=empty, weight=_WEIGHT, document=documents)


def _document(record: EffectRecord, logged: Sequence[LoggedEffect]) -> dict[str, Any]:
    place = (record.effect_id.agent_id, record.effect_id.key)
    state = next((one.state for one in logged if (one.agent_id, one.key) == place), None)
    return record.to_document() | {"log": state}


@app.command()
async def show(
    packet_id: Annotated[
        str | None,
        typer.Argument(metavar="[PACKET_ID]", help="The packet that the effects were for.", parser=whole_packet_id),
    ] = None,
    session_id: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="All effects of a session.", parser=whole_session_id)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what the log has of effects, entry by entry: it stays when the agents' own records are deleted."""
    if (packet_id is None) == (session_id is None):
        raise InputUnusable("name the packet, or a session with --session: one of them")
    async with open_log() as pool:
        if session_id is not None:
            effects = await session_effects(pool, session_id)
        else:
            effects = await packet_effects(pool, _uuid(packet_id or ""))
    entries = [row for effect in effects for row in effect.entries]
    rows = [{name: getattr(row, name) for name in _columns(session_id)} for row in entries]
    documents = [asdict(row) for row in entries]
    title = f"effects of {session_id or packet_id}"
    print_rows(rows, title=title, as_json=as_json, empty="the log has no such effect", document=documents)


def _columns(session_id: str | None) -> tuple[str, ...]:
    return _LOGGED if session_id is None else ("packet_id", "agent_id", *_LOGGED)


@app.command()
async def settle(
    packet_id: Annotated[
        str, typer.Argument(metavar="PACKET_ID", help="The packet that the effect was for.", parser=whole_packet_id)
    ],
    agent_id: Annotated[str, typer.Argument(metavar="AGENT_ID", help="The agent whose effect it is.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The handler's name for it, as `apc effect list` shows.")],
    result: Annotated[str | None, typer.Option(help="It has happened: the JSON that ctx.once returns for it.")] = None,
    not_made: Annotated[
        bool, typer.Option("--not-made", help="It has not happened: the next attempt runs it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Settle an effect whose outcome is unknown; then requeue its packet."""
    if (result is None) != not_made:
        raise InputUnusable("say what became of it: --result JSON if it has happened, --not-made if it has not")
    effect_id = EffectId(_uuid(packet_id), agent_id, key)
    async with _open_effects() as (store, pool):
        kept, entry = await settle_kept(store, effect_id, None if result is None else _json(result), OPERATOR, not_made)
        if kept is not None:
            await _report(pool, kept, entry)
    document = {"packet_id": packet_id, "agent_id": agent_id, "key": key, "state": "RELEASED"}
    if kept is not None and not not_made:
        document = kept.to_document()
    print_rows([document], title=str(effect_id), as_json=as_json, empty="")


async def settle_kept(
    store: EffectStore, effect_id: EffectId, result: JsonValue, by: str, not_made: bool
) -> tuple[EffectRecord | None, EffectEntry]:
    """Settle an effect in its store; return what is kept of it, or was, and the entry for the log.

    Raises EffectSettled.
    """
    if not_made:
        known = await store.get(effect_id)
        await store.release(effect_id)
        return known, EffectEntry.RELEASED
    return await store.settle(effect_id, result, by), EffectEntry.SETTLED


async def _report(pool: asyncpg.Pool, kept: EffectRecord, entry: EffectEntry) -> None:
    """Report the decision to the orchestrator, for the log, in the name of the operator of the broker user.

    The decision stands without it: the agent reports a settled effect when its packet is handled again.
    """
    from apc_client.operator import acting_operator

    try:
        door = find_door(BusSettings())
        operator = await acting_operator(pool, door.user)
        await report_settled(pool, door, kept, entry, operator.agent_id)
    except (InputUnusable, ServiceAway, BusError) as error:
        tell([f"it is settled, but the log was not told: {error}"])


async def report_settled(pool: asyncpg.Pool, door: Door, kept: EffectRecord, entry: EffectEntry, by: str) -> None:
    """Report to the orchestrator what an operator has decided of an effect. Raises BusError, ServiceAway."""
    await _publish(door, await read_shard(pool, kept.session_id, door.shards), kept, entry, by)


async def _publish(door: Door, shard: int, kept: EffectRecord, entry: EffectEntry, by: str) -> None:
    receipt = Receipt(
        packet_id=kept.effect_id.packet_id,
        session_id=kept.session_id,
        recipient=kept.effect_id.agent_id,
        kind=ReceiptKind.EFFECT,
        attempt=1,
        at=datetime.now(UTC),
        by=by,
        effect=effect_report(kept, entry),
    )
    async with door.open() as bus:
        message = Message(
            encode_receipts([receipt]), str(new_packet_id()), type=headers.TYPE_RECEIPTS, user_id=bus.user
        )
        await bus.publish(Publication(RECEIPTS, str(shard), message))

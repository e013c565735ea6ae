"""`apc effect`: show effects, and settle one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from uuid import UUID

import orjson
import typer

from apc_agents.effects import EffectId, EffectState, PostgresEffectStore
from apc_cli.commands.group import Commands
from apc_cli.connections import open_log
from apc_cli.errors import InputUnusable
from apc_cli.output.output import AsJson, print_rows

OPERATOR = "operator"
_SHOWN = ("packet_id", "agent_id", "key", "state", "claimed_at", "worker", "problem", "settled_by")


@asynccontextmanager
async def _open_effects() -> AsyncIterator[PostgresEffectStore]:
    async with open_log() as pool:
        if await pool.fetchval("SELECT to_regclass('apc_app.agent_effects')") is None:
            raise InputUnusable("this database holds no effects: run `apc migrate`")
        yield PostgresEffectStore(pool, is_patient=False)


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
    packet_id: Annotated[str | None, typer.Option("--packet", help="Only effects for this packet.")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only effects in this state: RUNNING, UNKNOWN, RESULT_LOST, MADE; repeatable."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Print at most this many effects.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print effects, newest first: packet, agent, key, state and since when."""
    known = None if not state else [_state(one) for one in state]
    packet = None if packet_id is None else _uuid(packet_id)
    async with _open_effects() as store:
        records = await store.list(agent_id=agent_id, packet_id=packet, states=known, limit=limit)
    documents = [record.to_document() for record in records]
    rows = [{name: document[name] for name in _SHOWN} for document in documents]
    print_rows(rows, title="effects", as_json=as_json, empty="there is no such effect", document=documents)


@app.command()
async def settle(
    packet_id: Annotated[str, typer.Argument(metavar="PACKET_ID", help="The packet that the effect was for.")],
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
    async with _open_effects() as store:
        if result is None:
            await store.release(effect_id)
            document: dict[str, Any] = {"packet_id": packet_id, "agent_id": agent_id, "key": key, "state": "RELEASED"}
        else:
            document = (await store.settle(effect_id, _json(result), OPERATOR)).to_document()
    print_rows([document], title=str(effect_id), as_json=as_json, empty="")

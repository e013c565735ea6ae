"""`apc packet search`: packets by words of their content, ids or ends of ids, agents, schemas and refusal codes."""

from typing import Annotated, Any

import typer

from apc_cli.commands.group import Since, time_since, whole_run_id
from apc_cli.connections import open_log
from apc_cli.errors import InputUnusable
from apc_cli.output.output import AsJson, print_rows, tell
from apc_contracts.text import numbered
from apc_log.body_encryption import is_sealed as body_is_sealed
from apc_log.errors import SearchUnusable
from apc_log.queries.packet_pages import PacketLine, bodies_at
from apc_log.queries.packets import Position
from apc_log.queries.search import MOST_UNREAD, Found, Said, Wanted, read_lag, read_said, search_log

_WEIGHT = ("says", "packet_id", "sender", "at", "code", "type", "run_id")
"""What a line shows first, where the terminal is narrow."""


async def search(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORDS", help="Words or their beginnings, ids or their ends; all of them together."),
    ] = None,
    *,
    run_id: Annotated[
        str | None, typer.Option("--run", metavar="RUN_ID", help="Only this run.", parser=whole_run_id)
    ] = None,
    since: Since = None,
    agent: Annotated[str | None, typer.Option(help="Only from or to this agent.")] = None,
    schema: Annotated[str | None, typer.Option(metavar="NAME/VERSION", help="Only data of this schema.")] = None,
    code: Annotated[str | None, typer.Option(help="Only refused with this code.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Print at most this many packets.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Find packets by words of their content, ids or ends of ids, agents, schemas and codes; the newest first."""
    text = " ".join(words) if words else None
    wanted = Wanted(text, run_id, agent, schema, code, None if since is None else time_since(since))
    async with open_log() as pool:
        try:
            found = await search_log(pool, wanted, limit=limit)
        except SearchUnusable as error:
            raise InputUnusable(str(error)) from error
        places = [Position(one.shard, one.seq) for one in found.packets]
        said, stored = await read_said(pool, places), await bodies_at(pool, places)
        behind = await read_lag(pool, "packet_search")
    sealed = frozenset(place for place, (_, body) in stored.items() if body_is_sealed(body))
    rows = [_row(one, said.get(Position(one.shard, one.seq)), sealed) for one in found.packets]
    print_rows(rows, title="Packets", as_json=as_json, empty="nothing was found", weight=_WEIGHT)
    tell(_remarks(found, behind))


def _row(packet: PacketLine, said: Said | None, sealed: frozenset[Position]) -> dict[str, Any]:
    is_sealed = Position(packet.shard, packet.seq) in sealed
    return {
        "at": packet.judged_at,
        "packet_id": packet.packet_id,
        "type": packet.packet_type,
        "schema": None if said is None else said.schema,
        "run_id": packet.run_id,
        "session_id": packet.session_id,
        "sender": packet.sender_agent_id,
        "recipients": packet.recipients,
        "verdict": packet.verdict,
        "code": packet.refusal_code,
        "says": said.line if said is not None else "(encrypted)" if is_sealed else None,
    }


def _remarks(found: Found, behind: int) -> list[str]:
    """Return what was not searched, and that there is more."""
    remarks = []
    if found.before is not None:
        remarks.append("there is more: narrow the search, or give a larger --limit")
    if found.archived_until is not None:
        until = found.archived_until.isoformat(timespec="seconds")
        remarks.append(f"packets up to {until} are in the archive and were not searched: trace a session or a run")
    if found.unread:
        count = f"more than {MOST_UNREAD:,} packets" if found.unread > MOST_UNREAD else numbered(found.unread, "packet")
        remarks.append(f"the content of {count} was not searched: it is encrypted, or no JSON")
    if behind:
        remarks.append(f"the newest {numbered(behind, 'entry', 'entries')} of the log are not searched yet: try again")
    return remarks

"""`apc tail`: read the newest entries of the log, and go on with what is added."""

from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import asyncpg
import orjson
import typer

from apc_cli.commands.group import whole_session_id
from apc_cli.connections import open_log
from apc_cli.errors import InputUnusable
from apc_cli.output.output import AsJson, show, wants_json
from apc_cli.output.terminal import BlockPrinter, echo, place_of, refusal_sentences
from apc_contracts.text import printable_json
from apc_contracts.vocabulary import PacketType
from apc_log.heads import read_ends
from apc_log.queries import get_session
from apc_log.queries.news import NewsRow, Passage, list_news, passages

POLL = timedelta(milliseconds=250)
BACK = 10_000
"""Entries of each shard among which the newest are looked for, unless a session is named."""
_ENDED = frozenset({"CLOSED", "HALTED"})


async def tail(
    session_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[SESSION_ID]", help="Only this session; the command ends with it.", parser=whole_session_id
        ),
    ] = None,
    packet_type: Annotated[PacketType | None, typer.Option("--type", help="Only packets of this type.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only packets from this agent or to it.")] = None,
    last: Annotated[int, typer.Option(min=1, help="Begin with at most this many of the newest entries.")] = 20,
    limit: Annotated[int | None, typer.Option(min=1, help="End after this many entries.")] = None,
    as_json: AsJson = False,
) -> None:
    """Follow the log: packets with their verdicts, retries, dead letters, steps of sessions, and conflicts."""
    write = _write_line if wants_json(as_json) else _block_writer(session_id)
    left = limit
    async with open_log() as pool:
        if session_id is not None and await get_session(pool, session_id) is None:
            raise InputUnusable(f"the log holds no session {session_id!r}: `apc session list` shows them")
        most: int | None = last
        async for passage in _until_the_end(pool, session_id):
            rows = await list_news(
                pool,
                passage,
                session_id=session_id,
                packet_type=packet_type,
                agent_id=agent,
                limit=most,
            )
            for row in rows[:left]:
                write(row)
            most = None
            if left is not None:
                left -= len(rows[:left])
                if left == 0:
                    return


async def _until_the_end(pool: asyncpg.Pool, session_id: str | None) -> AsyncIterator[Passage]:
    """Yield passages; those of a session end with it."""
    async for passage in passages(pool, poll=POLL, back=BACK if session_id is None else None):
        yield passage
        row = None if session_id is None else await get_session(pool, session_id)
        if row is not None and row.document.state in _ENDED:
            yield passage.next(await read_ends(pool))  # what was logged between the read of the heads and the end
            return


def _write_line(row: NewsRow) -> None:
    line = orjson.dumps(asdict(row), default=show, option=orjson.OPT_UTC_Z).decode()
    echo(printable_json(line), flush=True)


def _block_writer(session_id: str | None) -> Callable[[NewsRow], None]:
    printer = BlockPrinter()

    def write(row: NewsRow) -> None:
        is_plain = row.what in ("accepted", "session")
        sentences = [] if row.reason is None else _sentences(row)
        place = place_of(None if is_plain else row.packet_id, None if session_id is not None else row.session_id)
        if row.what == "session":
            printer.print(row.at, row.what, [row.reason or "", place])
        elif row.what == "accepted":
            printer.print(row.at, row.what, [row.packet_type or "", _way(row), place])
        else:
            printer.print(row.at, row.what, [row.packet_type or "", _way(row), row.code or ""], [*sentences, place])

    return write


def _sentences(row: NewsRow) -> list[str]:
    return refusal_sentences(row.code, row.field, row.reason, row.what, row.refusal)


def _way(row: NewsRow) -> str:
    if row.packet_type is None:
        return "" if row.sender is None else f"by {row.sender}"
    return f"{row.sender} → {', '.join(row.recipients) or '-'}"

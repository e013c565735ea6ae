"""`apc packet refused`: what the gate and the log writer did not take, and what to do about it."""

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import orjson

from apc_console.connections.database import open_log
from apc_console.output.blocks import BlockPrinter, place_of, refusal_sentences
from apc_console.output.cells import show
from apc_console.output.output import print_json
from apc_console.output.terminal import echo
from apc_contracts.judging.verdict import remedy_of
from apc_contracts.text import printable_json
from apc_log.watching import Passage, RefusedRow, count_late_heartbeats, list_refused, passages

POLL = timedelta(milliseconds=500)


@dataclass(frozen=True, slots=True)
class RefusalFilter:
    """Which refusals are printed."""

    session_id: str | None
    agent_id: str | None
    with_heartbeats: bool


async def print_refused(wanted: RefusalFilter, *, limit: int, follow: bool, as_json: bool) -> None:
    """Print the newest `limit` refusals, oldest first; with `follow` also those to come, until interrupted."""
    is_json = as_json or not sys.stdout.isatty()
    write = _write_line if is_json else _block_writer()
    async with open_log() as pool:
        most: int | None = limit
        async for passage in passages(pool, poll=POLL):
            found = await list_refused(pool, passage, **asdict(wanted), limit=most)
            if most is not None and not wanted.with_heartbeats:
                await _tell_left_out(pool, passage, wanted)
            if not follow:
                _print_all(found, write, is_json=is_json)
                return
            for row in found:
                write(row)
            most = None


async def _tell_left_out(pool: asyncpg.Pool, passage: Passage, wanted: RefusalFilter) -> None:
    left_out = await count_late_heartbeats(pool, passage, session_id=wanted.session_id, agent_id=wanted.agent_id)
    if left_out:
        what = "1 HEARTBEAT that expired is" if left_out == 1 else f"{left_out:,} HEARTBEATs that expired are"
        echo(f"apc: {what} left out: --heartbeats prints them too", file=sys.stderr)


def _print_all(found: list[RefusedRow], write: Callable[[RefusedRow], None], *, is_json: bool) -> None:
    if is_json:
        print_json([_document(row) for row in found])
    elif not found:
        echo("nothing was refused")
    else:
        for row in found:
            write(row)


def _document(row: RefusedRow) -> dict[str, Any]:
    return {**asdict(row), "remedy": remedy_of(row.code or "", row.kind)}


def _write_line(row: RefusedRow) -> None:
    line = orjson.dumps(_document(row), default=show, option=orjson.OPT_UTC_Z).decode()
    echo(printable_json(line), flush=True)


def _block_writer() -> Callable[[RefusedRow], None]:
    printer = BlockPrinter()

    def write(row: RefusedRow) -> None:
        facts = [row.code or "", row.packet_type or "", f"by {row.sender or row.user_id or 'an unknown user'}"]
        sentences = refusal_sentences(row.code, row.field, row.reason, row.kind)
        printer.print(row.at, row.kind, facts, [*sentences, place_of(row.packet_id, row.session_id)])

    return write

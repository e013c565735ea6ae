"""`apc packet trace` and `apc packet replay`: print rows of the log as tables or JSON."""

import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from apc_console.commands.packet.replay_view import print_lines
from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_console.output.cells import show
from apc_console.output.cursors import read_cursor, write_cursor
from apc_console.output.output import opened, print_json, tell
from apc_console.output.terminal import echo
from apc_contracts.judging.verdict import remedy_of
from apc_contracts.text import numbered
from apc_contracts.vocabulary import PacketType, RunPhase
from apc_log.body_encryption import is_sealed
from apc_log.queries import (
    ConflictRow,
    CoordinationRow,
    LogRow,
    PacketRow,
    PacketTimeline,
    Position,
    TransitionRow,
    replay,
    replay_page,
    trace,
)
from apc_log.watching import list_conflicts

PAGE = 500
WIDE = 140
"""Columns of a terminal from which packets are a table; a narrower one gets blocks, in which no id is broken."""
CONFLICTS = 10
"""Conflicts that `apc packet trace` tells on standard error; `apc packet refused` shows all."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What a packet must match to be traced; None = anything."""

    run_id: str | None
    session_id: str | None
    task_id: str | None
    packet_id: UUID | None
    packet_type: PacketType | None
    run_phase: RunPhase | None
    trace_id: UUID | None

    def given(self) -> dict[str, Any]:
        """Return the filters that are set, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def named(self) -> dict[str, Any]:
        """Return the ids among them, by name; what they name must exist."""
        found = {name: value for name, value in self.given().items() if name not in ("packet_type", "run_phase")}
        return {name: value for name, value in found.items() if value is not None}


async def print_trace(
    filters: Filters, *, limit: int, with_events: bool, after: str | None = None, as_json: bool
) -> None:
    """Print at most `limit` packets, read in pages; print the cursor of the next page on standard error.

    Raises:
        InputUnusable: the log holds nothing of the run, session, task, packet or trace that was named.
    """
    found: list[PacketTimeline] = []
    position = None if after is None else Position(*read_cursor(after, int, int))
    async with open_log() as pool:
        while len(found) < limit:
            page = await trace(
                pool,
                **filters.given(),
                limit=min(PAGE, limit - len(found)),
                with_events=with_events,
                after=position,
            )
            found.extend(page.packets)
            position = page.after
            if position is None:
                break
        conflicts = await list_conflicts(
            pool, session_id=filters.session_id, packet_id=filters.packet_id, limit=CONFLICTS
        )
        if not found and not conflicts and after is None:
            await _check_names(pool, filters.named())
    if as_json or not sys.stdout.isatty():
        print_json([_timeline(one, with_events) for one in found])
    elif found:
        _print_packets(found)
    else:
        echo("the log holds no such packet")
    tell([_sentence(conflict) for conflict in conflicts])
    if position is not None:
        echo(f"more packets: --after {write_cursor(*position)}", file=sys.stderr)


def _sentence(conflict: ConflictRow) -> str:
    code = f"{conflict.code}: " if conflict.code else ""
    sender = conflict.user_id or "nobody known"
    remedy = remedy_of(conflict.code or "", conflict.conflict)
    done = f". Remedy: {remedy}" if remedy else ""
    return f"{conflict.conflict}: packet {conflict.packet_id} by {sender}: {code}{conflict.reason}{done}"


async def _check_names(pool: asyncpg.Pool, named: Mapping[str, Any]) -> None:
    if named and not (await trace(pool, **named, limit=1, with_events=False)).packets:
        names = ", ".join(f"{name} {value}" for name, value in named.items())
        raise InputUnusable(f"the log holds no packet of {names}")


async def print_replay(
    run_id: str,
    task_id: str | None,
    out: Path | None,
    *,
    limit: int | None,
    after: str | None,
    with_events: bool,
    as_json: bool,
) -> None:
    """Print a run as it streams from the log: everything after `after`, or a page of `limit` entries.

    JSON has every entry; lines for a terminal leave the usual transitions out unless `with_events`.

    Raises InputUnusable when the log holds nothing of it there.
    """
    position = None if after is None else Position(*read_cursor(after, int, int))
    async with open_log() as pool:
        if limit is None:
            rows, more = replay(pool, run_id, task_id, after=position), None
        else:
            page = await replay_page(pool, run_id, task_id, limit=limit, after=position)
            rows, more = _each(page.rows), page.after
        first = await anext(rows, None)
        if first is None:
            where = "" if after is None else " behind this cursor"
            raise InputUnusable(f"the log holds no packet of run {run_id!r}{where}")
        if out is not None or as_json or not sys.stdout.isatty():
            count = await _write_json(first, rows, out)
            if out is not None:
                echo(f"{out}: {numbered(count, 'entry', 'entries')} of run {run_id}", file=sys.stderr)
        else:
            await print_lines(_chain(first, rows), with_events=with_events)
    if more is not None:
        echo(f"more entries: --after {write_cursor(*more)}", file=sys.stderr)


async def _each(rows: Iterable[LogRow]) -> AsyncIterator[LogRow]:
    for row in rows:
        yield row


async def _write_json(first: LogRow, rows: AsyncIterator[LogRow], out: Path | None) -> int:
    """Write a JSON array, one entry per line, as it arrives: a run may be larger than memory. Return the count."""
    count = 0
    with opened(out) as file:
        async for row in _chain(first, rows):
            file.write(b"[\n" if count == 0 else b",\n")
            file.write(orjson.dumps(_entry(row), default=show, option=orjson.OPT_UTC_Z))
            count += 1
        file.write(b"\n]\n")
        file.flush()
    return count


async def _chain(first: LogRow, rows: AsyncIterator[LogRow]) -> AsyncIterator[LogRow]:
    yield first
    async for row in rows:
        yield row


_KINDS = {PacketRow: "packet", TransitionRow: "transition", CoordinationRow: "coordination", ConflictRow: "conflict"}


def _entry(row: LogRow) -> dict[str, Any]:
    entry = {"kind": _KINDS[type(row)], **asdict(row)}
    if isinstance(row, PacketRow):
        body = entry.pop("body")
        # What stays encrypted was erased, or there is no master key here.
        entry["packet"] = None if is_sealed(body) else orjson.loads(body)
        entry["is_sealed"] = is_sealed(body)
    return entry


def _timeline(timeline: PacketTimeline, with_events: bool) -> dict[str, Any]:
    entry = {"state": timeline.state, **_entry(timeline.packet)}
    del entry["kind"]
    if timeline.stale is not None:
        entry["stale"] = asdict(timeline.stale)
    if with_events:
        entry["transitions"] = [asdict(row) for row in timeline.transitions]
    return entry


def _print_packets(timelines: Sequence[PacketTimeline]) -> None:
    from apc_console.output.blocks import BlockPrinter
    from apc_console.output.safe_console import SafeConsole

    console = SafeConsole()
    if console.width >= WIDE:
        _print_table(console, timelines)
        return
    printer = BlockPrinter()
    for timeline in timelines:
        packet = timeline.packet
        way, phase, state = _facts(timeline)
        remarks = [text for text, _ in _remarks(timeline)]
        place = [f"{phase}, {state}", f"packet {packet.packet_id}"]
        printer.print(packet.judged_at, packet.verdict, [packet.packet_type, way], [*place, *remarks])


def _print_table(console: Any, timelines: Sequence[PacketTimeline]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", expand=True)
    for name in ("judged at", "type"):
        table.add_column(name, no_wrap=True)
    for name, share in (("from → to, and what became of it", 2), ("phase", 1)):
        table.add_column(name, overflow="fold", ratio=share)
    table.add_column("state", overflow="fold", width=len("SCHEMA_VALIDATED"))
    table.add_column("packet id", no_wrap=True)
    for timeline in timelines:
        packet = timeline.packet
        table.add_row(f"{packet.judged_at:%H:%M:%S}", packet.packet_type, *_facts(timeline), str(packet.packet_id))
        for text, style in _remarks(timeline):
            table.add_row("", "", Text(text), style=style)
    console.print(table)


def _facts(timeline: PacketTimeline) -> tuple[str, str, str]:
    """Return who sent a packet to whom, the phase, and the state."""
    packet = timeline.packet
    state = f"{packet.refusal_code} {timeline.state}" if packet.refusal_code else timeline.state
    return (
        f"{packet.sender_agent_id} → {', '.join(packet.recipients) or '-'}",
        f"{packet.run_phase} r{packet.round} g{packet.generation}",
        state if timeline.stale is None else f"{state} stale",
    )


def _remarks(timeline: PacketTimeline) -> Iterator[tuple[str, str]]:
    """Yield what became of a packet, with the style of each sentence."""
    refusal = _refusal_of(timeline)
    if refusal is not None:
        yield f"refused: {refusal['code']} at {refusal['path']}: {refusal['message']}", "red"
    warnings = timeline.packet.facts.get("warnings")
    if warnings:
        yield f"warning: {', '.join(warnings)}", "yellow"
    for recipient, events in _events(timeline).items():
        yield f"{recipient or 'packet'}: {' '.join(events)}", "dim"


def _refusal_of(timeline: PacketTimeline) -> dict[str, Any] | None:
    """Return why the packet was refused: on arrival, or after it was held."""
    ruled = [row.metadata["refusal"] for row in timeline.transitions if row.metadata and "refusal" in row.metadata]
    return timeline.packet.refusal or next(iter(ruled), None)


def _events(timeline: PacketTimeline) -> dict[str, list[str]]:
    """Return what happened, by recipient; '' is the packet as a whole."""
    events: dict[str, list[str]] = {}
    for row in timeline.transitions:
        events.setdefault(row.recipient, []).append(row.event)
    return events

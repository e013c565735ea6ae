"""`apc packet refused`: what the gate and the log writer did not take, and what to do about it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import asyncpg
import orjson
import typer

from apc_bus.port import Delivery, Subscription
from apc_bus.settings import BusSettings
from apc_console.commands.packet_replay import print_lines
from apc_console.connections import open_bus, open_log
from apc_console.errors import InputUnusable
from apc_console.output.files import read_cursor, write_cursor
from apc_console.output.output import AsJson, opened, print_json, tell
from apc_console.output.tables import show
from apc_console.output.terminal import BlockPrinter, echo, place_of, refusal_sentences
from apc_contracts.errors import PacketRefused
from apc_contracts.judging.verdict import remedy_of
from apc_contracts.packet import Packet
from apc_contracts.text import numbered, one_line, printable_json
from apc_contracts.vocabulary import PacketType, RunPhase
from apc_contracts.wire.parsing import parse_packet
from apc_contracts.wire.strict_json import read_strict_json
from apc_log.body_encryption import is_sealed
from apc_log.queries import (
    ConflictRow,
    CoordinationRow,
    LogRow,
    PacketRow,
    PacketTimeline,
    Position,
    TransitionRow,
    replay_page,
)
from apc_log.queries import (
    replay as recorded_replay,
)
from apc_log.queries import (
    trace as recorded_trace,
)
from apc_log.watching import Passage, RefusedRow, count_late_heartbeats, list_conflicts, list_refused, passages

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
        print_json([_refused_document(row) for row in found])
    elif not found:
        echo("nothing was refused")
    else:
        for row in found:
            write(row)


def _refused_document(row: RefusedRow) -> dict[str, Any]:
    return {**asdict(row), "remedy": remedy_of(row.code or "", row.kind)}


def _write_line(row: RefusedRow) -> None:
    line = orjson.dumps(_refused_document(row), default=show, option=orjson.OPT_UTC_Z).decode()
    echo(printable_json(line), flush=True)


def _block_writer() -> Callable[[RefusedRow], None]:
    printer = BlockPrinter()

    def write(row: RefusedRow) -> None:
        facts = [row.code or "", row.packet_type or "", f"by {row.sender or row.user_id or 'an unknown user'}"]
        sentences = refusal_sentences(row.code, row.field, row.reason, row.kind)
        printer.print(row.at, row.kind, facts, [*sentences, place_of(row.packet_id, row.session_id)])

    return write


# `apc packet trace` and `apc packet replay`: print rows of the log as tables or JSON.

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
            page = await recorded_trace(
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
    if named and not (await recorded_trace(pool, **named, limit=1, with_events=False)).packets:
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
            rows, more = recorded_replay(pool, run_id, task_id, after=position), None
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
    from apc_console.output.safe_console import SafeConsole
    from apc_console.output.terminal import BlockPrinter

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


# `apc packet substrate`: the packets that agents broadcast, from any offset of the stream.

QUIET_SECONDS = 3.0
"""Seconds without a packet after which the stream counts as read to its end."""
_NAMED = ("first", "last", "next")


def offset_of(text: str) -> int | str:
    """Return where to begin: a number, `first`, `last` or `next`. Raises InputUnusable."""
    if text in _NAMED:
        return text
    if text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    raise InputUnusable(f"--from {one_line(text)!r}: write {', '.join(_NAMED)} or the number of an offset")


async def print_substrate(begin: int | str, *, limit: int | None, follow: bool, as_json: bool) -> None:
    """Print the packets of the substrate, oldest first.

    Args:
        begin: the first offset; `next` = what comes from now on.
        limit: most packets to print; None = all.
        follow: wait for more at the end of the stream.
        as_json: a line of JSON for each, as when the output is no terminal.

    Raises:
        InputUnusable: no broker is named.
        BusError: the broker is away, the stream is missing, or the user may not read it.
    """
    is_json = as_json or not sys.stdout.isatty()
    async with open_bus(BusSettings()) as bus, bus.read_substrate(begin) as stream:
        printed = 0
        while batch := await _next(stream, follow):
            for delivery in batch[: None if limit is None else limit - printed]:
                echo(_as_json(delivery) if is_json else _as_line(delivery), flush=True)
                printed += 1
            if limit is not None and printed >= limit:
                return
            await stream.ack(batch[-1], multiple=True)


async def _next(stream: Subscription, follow: bool) -> list[Delivery]:
    try:
        async with asyncio.timeout(None if follow else QUIET_SECONDS):
            return await stream.receive()
    except TimeoutError:
        return []


def _as_json(delivery: Delivery) -> str:
    message = delivery.message
    document = {"offset": delivery.offset, "packet_id": message.message_id, "packet": _document(message.body)}
    return printable_json(orjson.dumps(document).decode())


def _document(body: bytes) -> Any:
    """Return the packet as it was sent; None for a body that none can be, which only a foreign writer can leave."""
    try:
        return read_strict_json(body)
    except PacketRefused:
        return None


def _as_line(delivery: Delivery) -> str:
    try:
        packet: Packet = parse_packet(delivery.message.body)
    except PacketRefused as refused:
        return one_line(f"{delivery.offset}  unreadable: {refused}")
    said = show(packet.payload.model_dump(mode="json", exclude_none=True))
    return one_line(f"{delivery.offset}  {packet.packet_type}  {packet.sender.agent_id}  {packet.packet_id}  {said}")


# `apc packet`: validate and arbitrate by contract; read the log by run, session or packet; retract a packet.

app = typer.Typer(help="Validate, arbitrate, trace, retract and replay packets.", no_args_is_help=True)

After = Annotated[str | None, typer.Option(help="Continue after this cursor, which the previous page printed.")]
ContractFile = Annotated[Path | None, typer.Option("--contract", help="A contract file instead of the built-in one.")]


@app.command()
def validate(
    file: Annotated[Path, typer.Argument(help="A packet as JSON; - reads the standard input.")],
    contract_file: ContractFile = None,
) -> None:
    """Print `accepted`, or `refused CODE at PATH: message` (exit 2): the gate's verdict without a session."""
    from apc_console.output.files import read_bytes
    from apc_contracts.admission.admit import validate_offline
    from apc_contracts.contract.contract import load_contract

    verdict = validate_offline(read_bytes(file), load_contract(contract_file))
    if verdict.refusal is not None:
        echo(f"refused {verdict.refusal.reason}")
        raise typer.Exit(2)
    echo("accepted")
    for warning in verdict.warnings:
        echo(f"warning {warning.reason}", file=sys.stderr)


@app.command("transfer-arbitrate")
def transfer_arbitrate(
    packets_in: Annotated[Path, typer.Option(help="A list, {packets: […]}, JSON lines or YAML; - reads the input.")],
    top_k: Annotated[int, typer.Option(min=0, help="Select at most this many packets, over the whole file.")] = 2,
    out: Annotated[Path | None, typer.Option(help="Write JSON to this file; - is standard output.")] = None,
    contract_file: ContractFile = None,
    as_json: AsJson = False,
) -> None:
    """Judge and rank TRANSFERs as a barrier would, without any server: selected, not selected, rejected."""
    from apc_console.commands.packet_transfers import print_arbitration, read_packets
    from apc_contracts.contract.contract import load_contract
    from apc_contracts.protocol.transfer_arbitration import arbitrate_offline

    arbitration = arbitrate_offline(read_packets(packets_in), load_contract(contract_file), top_k)
    print_arbitration(arbitration, out, as_json=as_json)


@app.command()
def trace(
    run_id: Annotated[str | None, typer.Option(help="Only this run.")] = None,
    session_id: Annotated[str | None, typer.Option(help="Only this session.")] = None,
    task_id: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    packet_id: Annotated[UUID | None, typer.Option(help="Only this packet.")] = None,
    packet_type: Annotated[PacketType | None, typer.Option("--type", help="Only this type.")] = None,
    phase: Annotated[RunPhase | None, typer.Option(help="Only this phase.")] = None,
    trace_id: Annotated[UUID | None, typer.Option(help="Only what follows from this root packet.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many packets.")] = 100,
    events: Annotated[bool, typer.Option(help="Print the transitions of each packet, too.")] = True,
    after: After = None,
    as_json: AsJson = False,
) -> None:
    """Print packets of the log, oldest first, with their outcomes."""
    from apc_console.system.running import run_quietly

    filters = Filters(run_id, session_id, task_id, packet_id, packet_type, phase, trace_id)
    run_quietly(print_trace(filters, limit=limit, with_events=events, after=after, as_json=as_json))


@app.command()
def refused(
    session_id: Annotated[str | None, typer.Option(help="Only this session.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only what this agent sent.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Begin with at most this many of the newest.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, until interrupted.")] = False,
    heartbeats: Annotated[bool, typer.Option("--heartbeats", help="Also HEARTBEATs that expired.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what was refused, with the field and the remedy: packets, conflicting ids, unreadable inputs."""
    from apc_console.system.running import run_quietly

    run_quietly(
        print_refused(RefusalFilter(session_id, agent, heartbeats), limit=limit, follow=follow, as_json=as_json)
    )


@app.command("lineage-summary")
def lineage_summary(
    run_id: Annotated[str | None, typer.Option(help="Only what was transferred in this run.")] = None,
    protocol_id: Annotated[str | None, typer.Option(help="Only this protocol.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many rows of each kind.")] = 20,
    after: After = None,
    contract_file: ContractFile = None,
    as_json: AsJson = False,
) -> None:
    """Print how protocols spread and perform: effectiveness, modes, drift, propagation, arbitrations, decay.

    It covers TRANSFERs and ARBITRATIONs; other packets are shown by `apc packet trace`.
    """
    from apc_console.commands.packet_lineage import print_lineage_summary
    from apc_console.system.running import run_quietly

    run_quietly(
        print_lineage_summary(
            contract_file, run_id=run_id, protocol_id=protocol_id, limit=limit, after=after, as_json=as_json
        )
    )


@app.command()
def tree(
    packet_id: Annotated[UUID, typer.Argument(metavar="PACKET_ID", help="The root of the tree.")],
    session_id: Annotated[str | None, typer.Option(help="The session, when several have the id.")] = None,
    dot: Annotated[bool, typer.Option("--dot", help="For Graphviz.")] = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="A Mermaid flowchart.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many packets.")] = 500,
    as_json: AsJson = False,
) -> None:
    """Print what a packet has caused, as a tree."""
    from apc_console.commands.packet_lineage import print_tree
    from apc_console.system.running import run_quietly

    run_quietly(print_tree(packet_id, session_id, limit, dot=dot, mermaid=mermaid, as_json=as_json))


@app.command()
def replay(
    run_id: Annotated[str | None, typer.Option(help="The run; a bundle contains its own.")] = None,
    task_id: Annotated[str | None, typer.Option(help="Only the packets of this task.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write JSON to this file.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Recompute every verdict and transition; exit 4 at the first difference.")
    ] = False,
    what_if: Annotated[
        Path | None, typer.Option(help="Another contract file: print what it would have decided differently.")
    ] = None,
    bundle: Annotated[Path | None, typer.Option(help="Verify a file of `apc log export`, without a database.")] = None,
    contract_file: Annotated[
        list[Path] | None,
        typer.Option("--contract", help="A contract file that the run was judged by, if the log does not hold it."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Print at most this many entries; default: the whole run.")
    ] = None,
    after: After = None,
    events: Annotated[bool, typer.Option("--events", help="At a terminal, print the usual transitions, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a whole run in causal order: packets, their transitions, the steps of the session."""
    from apc_console.system.running import run_quietly

    if not verify and what_if is None:
        if run_id is None:
            raise InputUnusable("name the run with --run-id; a bundle is read by --verify and --what-if")

        run_quietly(print_replay(run_id, task_id, out, limit=limit, after=after, with_events=events, as_json=as_json))
        return
    if task_id is not None or limit is not None or after is not None:
        raise InputUnusable("--verify and --what-if take a run whole: leave --task-id, --limit and --after out")
    from apc_console.commands.packet_replay import print_verified

    run_quietly(print_verified(run_id, bundle, contract_file or (), what_if, out, as_json=as_json))


PacketId = Annotated[UUID, typer.Argument(metavar="PACKET_ID", help="The packet.")]
OfSession = Annotated[str | None, typer.Option("--session-id", help="The session, when several have the id.")]


@app.command()
def impact(
    packet_id: PacketId,
    session_id: OfSession = None,
    rests_on: Annotated[
        bool, typer.Option("--rests-on", help="The reverse: list what the packet itself rests on, such as evidence.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List everything that rests on a packet: what its retraction would mark stale."""
    from apc_console.commands.packet_lineage import print_grounds, print_impact
    from apc_console.system.running import run_quietly

    print_it = print_grounds if rests_on else print_impact
    run_quietly(print_it(packet_id, session_id, as_json=as_json))


@app.command()
def retract(
    packet_id: PacketId,
    reason: Annotated[str, typer.Option(help="The reason, which the log keeps.")],
    replacement: Annotated[UUID | None, typer.Option(help="The packet that replaces it.")] = None,
    session_id: OfSession = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be stale.")] = False,
    as_json: AsJson = False,
) -> None:
    """Retract a packet as its sender, and list what is stale now. Nothing is deleted."""
    from apc_console.commands.packet_lineage import retract as send
    from apc_console.system.running import run_quietly

    run_quietly(send(packet_id, session_id, reason, replacement, dry_run=dry_run, as_json=as_json))


@app.command()
def substrate(
    begin: Annotated[str, typer.Option("--from", metavar="OFFSET", help="first, last, next, or a number.")] = "first",
    follow: Annotated[bool, typer.Option(help="Wait for more at the end, until interrupted.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Print at most this many packets; default all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the packets sent to SUBSTRATE, with their offsets; offsets have gaps: continue at the last one + 1."""
    from apc_console.system.running import run_quietly

    run_quietly(print_substrate(offset_of(begin), limit=limit, follow=follow, as_json=as_json))

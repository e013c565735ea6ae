"""`apc packet`: judge packets by contract, read the log by run, session or packet, and see what was refused and why."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import asyncpg
import orjson
import typer
import yaml
from rich.table import Table
from rich.text import Text

from apc_bus.port import Delivery, Subscription
from apc_bus.settings import BusSettings
from apc_cli.commands.group import (
    After,
    Commands,
    ContractFile,
    Since,
    packet_uuid,
    time_since,
    whole_run_id,
    whole_session_id,
)
from apc_cli.commands.issue import GroupBy, grouping_of, issues_since, print_issues
from apc_cli.commands.packet_lineage import impact, lineage_summary, retract, tree
from apc_cli.commands.packet_replay import print_lines, print_verified
from apc_cli.commands.packet_search import search
from apc_cli.connections import open_bus, open_log, require_agent
from apc_cli.errors import InputUnusable
from apc_cli.output.files import read_bytes, read_cursor, write_cursor, write_output
from apc_cli.output.output import AsJson, opened, print_json, print_rows, show, tell, to_json, wants_json
from apc_cli.output.safe_console import SafeConsole
from apc_cli.output.terminal import BlockPrinter, echo, own_sentences, place_of, refusal_sentences
from apc_contracts.admission.admit import validate_offline
from apc_contracts.contract.contract import load_contract
from apc_contracts.errors import PacketRefused
from apc_contracts.judging.verdict import remedy_of
from apc_contracts.packet import Packet
from apc_contracts.protocol.transfer_arbitration import TransferArbitration, TransferRow, arbitrate_offline
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
    list_conflicts,
    replay_page,
)
from apc_log.queries import (
    replay as recorded_replay,
)
from apc_log.queries import (
    trace as recorded_trace,
)
from apc_log.queries.news import Passage, RefusedRow, count_late_heartbeats, list_refused, passages
from apc_log.queries.troubles import Grouping

ACCEPTED_FORMS = "a list of packets, {packets: […]}, JSON lines or YAML"


def transfer_arbitrate(
    packets_in: Annotated[Path, typer.Option(help="A list, {packets: […]}, JSON lines or YAML; - reads the input.")],
    top_k: Annotated[int, typer.Option(min=0, help="Select at most this many packets, over the whole file.")] = 2,
    out: Annotated[Path | None, typer.Option(help="Write JSON to this file; - is standard output.")] = None,
    contract_file: ContractFile = None,
    as_json: AsJson = False,
) -> None:
    """Judge and rank TRANSFERs as a barrier would, without any server: selected, not selected, rejected."""
    arbitration = arbitrate_offline(read_packets(packets_in), load_contract(contract_file), top_k)
    document = arbitration.document
    if out is not None:
        write_output(out, to_json(document) + b"\n")
        if str(out) != "-":
            echo(f"{out}: {len(arbitration.selected)} of {document['input_count']} selected", file=sys.stderr)
    else:
        rows = _table(arbitration)
        print_rows(rows, title="Transfer arbitration", as_json=as_json, empty="no packets", document=document)


def read_packets(path: Path) -> list[bytes]:
    """Return the items of a file, each as JSON bytes; whether they are packets is not checked here.

    Raises:
        InputUnusable: the file cannot be read, or is in none of the accepted forms.
    """
    data = read_bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputUnusable(f"{path} is not UTF-8: byte {error.start} cannot be read") from error
    if not text.strip():
        raise InputUnusable(f"{path} is empty: give {ACCEPTED_FORMS}")
    lines = _json_lines(text)
    if lines is not None:
        return lines
    return [_body(item) for item in _items(_arbitration_document(text, path), path)]


def _json_lines(text: str) -> list[bytes] | None:
    """Return one packet per line, unchanged.

    None when the first line is not a JSON object, or is part of a longer one.
    """
    # Not splitlines: a JSON string may contain other line separators.
    lines = [line for line in text.split("\n") if line.strip()]
    try:
        first = json.loads(lines[0])
    except (ValueError, RecursionError):
        return None
    if not isinstance(first, dict) or "packets" in first:
        return None
    if len(lines) == 1 and "packet_type" not in first and "packet_id" not in first:
        return None
    return [line.strip().encode() for line in lines]


def _arbitration_document(text: str, path: Path) -> Any:
    """Return the file as one JSON value, or else as YAML."""
    try:
        return json.loads(text, object_pairs_hook=_refuse_twice)
    except (ValueError, RecursionError) as error:
        if text.lstrip()[0] in "[{":
            raise InputUnusable(f"{path} cannot be read as JSON: {error}; give {ACCEPTED_FORMS}") from error
        return _yaml(text, path)


class PlainLoader(yaml.SafeLoader):
    """A YAML loader that leaves times as text, as in JSON, and takes no aliases: a small file can grow by them."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the node that comes next."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("no anchors and aliases: write the value out")
        return super().compose_node(parent, index)


PlainLoader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _yaml(text: str, path: Path) -> Any:
    try:
        loader = PlainLoader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputUnusable(f"{path} is neither JSON nor YAML: {error}; give {ACCEPTED_FORMS}") from error


def _items(document: Any, path: Path) -> list[Any]:
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        raise InputUnusable(f"{path} holds {_kind(document)}: give {ACCEPTED_FORMS}")
    if "packet_type" in document or "packet_id" in document:
        return [document]
    unknown = sorted(str(key) for key in document if key != "packets")
    if "packets" not in document or unknown:
        named = ", ".join(unknown) or "nothing"
        raise InputUnusable(f"{path} is an object with {named}: the packets belong under the one key `packets`")
    packets = document["packets"]
    if not isinstance(packets, list):
        raise InputUnusable(f"{path}: packets is {_kind(packets)}, not a list: give packets: [ … ]")
    return packets


def _body(item: Any) -> bytes:
    """Return an item as the bytes that `parse_packet` takes, which judges them."""
    try:
        return json.dumps(item, default=str).encode()
    except (TypeError, ValueError, RecursionError):
        return str(item).encode(errors="replace")  # keys that JSON does not have, a value inside itself: not a packet


def _refuse_twice(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} appears twice in one object")
    return document


def _kind(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case dict():
            return "an object"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case _:
            return "text" if isinstance(value, str) else f"a {type(value).__name__}"


def _table(arbitration: TransferArbitration) -> list[dict[str, Any]]:
    groups: tuple[tuple[str, Sequence[TransferRow]], ...] = (
        ("selected", arbitration.selected),
        ("not selected", arbitration.not_selected),
        ("rejected", arbitration.rejected),
    )
    return [{"outcome": name, **row.document, "reason": row.reason} for name, rows in groups for row in rows]


app = Commands(help="Validate, arbitrate, trace, retract and replay packets.")


@app.command()
def validate(
    file: Annotated[Path, typer.Argument(help="A packet as JSON; - reads the standard input.")],
    contract_file: ContractFile = None,
) -> None:
    """Print `accepted`, or `refused CODE at PATH: message` (exit 2): the gate's verdict without a session."""
    verdict = validate_offline(read_bytes(file), load_contract(contract_file))
    if verdict.refusal is not None:
        echo(f"refused {verdict.refusal.reason}")
        raise typer.Exit(2)
    echo("accepted")
    for warning in verdict.warnings:
        echo(f"warning {warning.reason}", file=sys.stderr)


app.command("transfer-arbitrate")(transfer_arbitrate)

# `apc packet trace`.

PAGE = 500
WIDE = 140
"""Columns of a terminal from which packets are a table; a narrower one gets blocks, in which no id is broken."""
CONFLICTS = 10
"""Conflicts that `apc packet trace` tells on standard error; `apc packet refused` shows all."""


@app.command()
async def trace(
    run_id: Annotated[str | None, typer.Option(help="Only this run.", parser=whole_run_id)] = None,
    session_id: Annotated[str | None, typer.Option(help="Only this session.", parser=whole_session_id)] = None,
    task_id: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    packet_id: Annotated[UUID | None, typer.Option(help="Only this packet.", parser=packet_uuid)] = None,
    packet_type: Annotated[PacketType | None, typer.Option("--type", help="Only this type.")] = None,
    phase: Annotated[RunPhase | None, typer.Option(help="Only this phase.")] = None,
    trace_id: Annotated[UUID | None, typer.Option(help="Only what follows from this root packet.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many packets.")] = 100,
    events: Annotated[bool, typer.Option(help="Print the transitions of each packet, too.")] = True,
    after: After = None,
    as_json: AsJson = False,
) -> None:
    """Print packets of the log, oldest first, with their outcomes."""
    position = None if after is None else Position(*read_cursor(after, int, int))
    named = {
        "run_id": run_id,
        "session_id": session_id,
        "task_id": task_id,
        "packet_id": packet_id,
        "trace_id": trace_id,
    }
    narrowed = {**named, "packet_type": packet_type, "run_phase": phase}
    async with open_log() as pool:
        packets, position = await _pages(pool, narrowed, limit, position, events)
        conflicts = await list_conflicts(pool, session_id=session_id, packet_id=packet_id, limit=CONFLICTS)
        if not packets and not conflicts and after is None:
            await _check_names(pool, named)
    if wants_json(as_json):
        print_json([_timeline(one, events) for one in packets])
    elif packets:
        _print_packets(packets)
    else:
        echo("the log holds no such packet")
    tell([_sentence(conflict) for conflict in conflicts])
    if position is not None:
        echo(f"more packets: --after {write_cursor(*position)}", file=sys.stderr)


async def _pages(
    pool: asyncpg.Pool, narrowed: Mapping[str, Any], limit: int, position: Position | None, with_events: bool
) -> tuple[list[PacketTimeline], Position | None]:
    """Return at most `limit` packets, and where the next page begins."""
    packets: list[PacketTimeline] = []
    while len(packets) < limit:
        most = min(PAGE, limit - len(packets))
        page = await recorded_trace(pool, **narrowed, limit=most, with_events=with_events, after=position)
        packets.extend(page.packets)
        position = page.after
        if position is None:
            break
    return packets, position


async def _check_names(pool: asyncpg.Pool, named: Mapping[str, Any]) -> None:
    named = {name: value for name, value in named.items() if value is not None}
    if named and not (await recorded_trace(pool, **named, limit=1, with_events=False)).packets:
        names = ", ".join(f"{name} {value}" for name, value in named.items())
        raise InputUnusable(f"the log holds no packet of {names}")


def _sentence(conflict: ConflictRow) -> str:
    code = f"{conflict.code}: " if conflict.code else ""
    sender = conflict.user_id or "nobody known"
    remedy = remedy_of(conflict.code or "", conflict.conflict)
    done = f". Remedy: {remedy}" if remedy else ""
    return f"{conflict.conflict}: packet {conflict.packet_id} by {sender}: {code}{conflict.reason}{done}"


def _timeline(timeline: PacketTimeline, with_events: bool) -> dict[str, Any]:
    entry = {"state": timeline.state, **_entry(timeline.packet)}
    del entry["kind"]
    if timeline.stale is not None:
        entry["stale"] = asdict(timeline.stale)
    if with_events:
        entry["transitions"] = [asdict(row) for row in timeline.transitions]
        entry["effects"] = [asdict(row) for effect in timeline.effects for row in effect.entries]
    return entry


def _print_packets(timelines: Sequence[PacketTimeline]) -> None:
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


def _print_table(console: SafeConsole, timelines: Sequence[PacketTimeline]) -> None:
    table = Table(box=None, header_style="bold", expand=True)
    for name in ("judged at", "type"):
        table.add_column(name, no_wrap=True)
    for name, share in (("from → to, and what became of it", 2), ("phase", 1)):
        table.add_column(name, overflow="fold", ratio=share)
    table.add_column("state", overflow="fold", width=len("SCHEMA_VALIDATED"))
    table.add_column("packet id", no_wrap=True)
    for timeline in timelines:
        packet = timeline.packet
        table.add_row(f"{packet.judged_at:%H:%M:%S}Z", packet.packet_type, *_facts(timeline), str(packet.packet_id))
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
        for sentence in own_sentences(refusal):
            yield sentence, "red"
    warnings = timeline.packet.facts.get("warnings")
    if warnings:
        yield f"warning: {', '.join(warnings)}", "yellow"
    for recipient, events in _events(timeline).items():
        yield f"{recipient or 'packet'}: {' '.join(events)}", "dim"
    for effect in timeline.effects:
        yield effect.words, "red" if effect.state == "unknown" else "cyan"


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


# `apc packet refused`.

POLL = timedelta(milliseconds=500)


@app.command()
async def refused(
    session_id: Annotated[str | None, typer.Option(help="Only this session.", parser=whole_session_id)] = None,
    agent: Annotated[str | None, typer.Option(help="Only what this agent sent.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Begin with at most this many of the newest.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, until interrupted.")] = False,
    heartbeats: Annotated[bool, typer.Option("--heartbeats", help="Also HEARTBEATs that expired.")] = False,
    since: Since = None,
    group_by: GroupBy = None,
    as_json: AsJson = False,
) -> None:
    """Print what was refused, with the field and the remedy: packets, conflicting ids, unreadable inputs.

    With --group-by the counts of the last day, or of --since: by code, rule, agent or field.
    """
    if group_by is not None:
        if follow or session_id is not None:
            raise InputUnusable("--group-by counts: give --since or --agent with it, not --follow or --session-id")
        await _print_grouped(since, grouping_of(group_by), agent, limit, as_json=as_json)
        return
    begin = None if since is None else time_since(since)
    is_json = wants_json(as_json)
    write = _write_line if is_json else _block_writer()
    most: int | None = limit
    async with open_log() as pool:
        async for passage in passages(pool, poll=POLL):
            rows = await list_refused(
                pool, passage, session_id=session_id, agent_id=agent, with_heartbeats=heartbeats, limit=most
            )
            rows = [row for row in rows if begin is None or row.at >= begin]
            if most is not None and not rows:
                await require_agent(pool, agent)  # what an unregistered agent sent was refused, and is listed
            if most is not None and not heartbeats:
                await _tell_left_out(pool, passage, session_id, agent)
            if not follow:
                _print_all(rows, write, is_json=is_json)
                return
            for row in rows:
                write(row)
            most = None


async def _print_grouped(since: str | None, by: Grouping, agent: str | None, limit: int, *, as_json: bool) -> None:
    begin = datetime.now(UTC) - timedelta(days=1) if since is None else time_since(since)
    async with open_log() as pool:
        found = await issues_since(pool, begin, by, kinds=("refusal",), agent_id=agent, limit=limit)
    print_issues(found, by, as_json=as_json, empty="nothing was refused")


async def _tell_left_out(pool: asyncpg.Pool, passage: Passage, session_id: str | None, agent_id: str | None) -> None:
    left_out = await count_late_heartbeats(pool, passage, session_id=session_id, agent_id=agent_id)
    if left_out:
        what = "1 HEARTBEAT that expired is" if left_out == 1 else f"{left_out:,} HEARTBEATs that expired are"
        echo(f"apc: {what} left out: --heartbeats prints them too", file=sys.stderr)


def _print_all(rows: list[RefusedRow], write: Callable[[RefusedRow], None], *, is_json: bool) -> None:
    if is_json:
        print_json([_refused_document(row) for row in rows])
    elif not rows:
        echo("nothing was refused")
    else:
        for row in rows:
            write(row)


def _refused_document(row: RefusedRow) -> dict[str, Any]:
    return {**asdict(row), "remedy": remedy_of(row.code or "", row.kind, row.refusal)}


def _write_line(row: RefusedRow) -> None:
    line = orjson.dumps(_refused_document(row), default=show, option=orjson.OPT_UTC_Z).decode()
    echo(printable_json(line), flush=True)


def _block_writer() -> Callable[[RefusedRow], None]:
    printer = BlockPrinter()

    def write(row: RefusedRow) -> None:
        facts = [row.code or "", row.packet_type or "", f"by {row.sender or row.user_id or 'an unknown user'}"]
        sentences = refusal_sentences(row.code, row.field, row.reason, row.kind, row.refusal)
        printer.print(row.at, row.kind, facts, [*sentences, place_of(row.packet_id, row.session_id)])

    return write


app.command("lineage-summary")(lineage_summary)
app.command()(tree)

# `apc packet replay`.


@app.command()
async def replay(
    run_id: Annotated[str | None, typer.Option(help="The run; a bundle contains its own.", parser=whole_run_id)] = None,
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
    if verify or what_if is not None:
        if task_id is not None or limit is not None or after is not None:
            raise InputUnusable("--verify and --what-if take a run whole: leave --task-id, --limit and --after out")
        await print_verified(run_id, bundle, contract_file or (), what_if, out, as_json=as_json)
    elif run_id is None:
        raise InputUnusable("name the run with --run-id; a bundle is read by --verify and --what-if")
    else:
        await print_replay(run_id, task_id, out, limit=limit, after=after, with_events=events, as_json=as_json)


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
        if out is not None or wants_json(as_json):
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


app.command()(search)
app.command()(impact)
app.command()(retract)

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


@app.command()
async def substrate(
    begin: Annotated[str, typer.Option("--from", metavar="OFFSET", help="first, last, next, or a number.")] = "first",
    follow: Annotated[bool, typer.Option(help="Wait for more at the end, until interrupted.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Print at most this many packets; default all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the packets sent to SUBSTRATE, with their offsets; offsets have gaps: continue at the last one + 1."""
    is_json, offset = wants_json(as_json), offset_of(begin)
    async with open_bus(BusSettings()) as bus, bus.read_substrate(offset) as stream:
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

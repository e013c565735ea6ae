"""A replayed run as lines at a terminal: packets, what is unusual about their lifecycle, the steps of the session."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from apc_cli.connections import open_log
from apc_cli.errors import InputUnusable, LogDiffers
from apc_cli.output.files import read_bytes, write_bytes
from apc_cli.output.output import print_json, print_rows, show, to_json, wants_json
from apc_cli.output.safe_console import SafeConsole
from apc_cli.output.terminal import echo, own_sentences
from apc_contracts.contract.contract import load_contract
from apc_contracts.text import numbered, one_line
from apc_log.queries import (
    BundleRecords,
    ConflictRow,
    CoordinationRow,
    LogRow,
    PacketRow,
    Replayed,
    TransitionRow,
    read_recorded,
    verify_run,
)

USUAL_STATES = frozenset(
    {
        "DRAFT",
        "NORMALIZED",
        "SCHEMA_VALIDATED",
        "POLICY_VALIDATED",
        "ROUTED",
        "DELIVERED",
        "APPLIED",
        "VERIFIED",
        "ARCHIVED",
    }
)
"""The states of a packet that is accepted, delivered and handled at the first attempt."""


async def print_lines(rows: AsyncIterator[LogRow], *, with_events: bool) -> None:
    """Print a line for each row, then how many there were; the usual transitions only `with_events`."""
    console = SafeConsole()
    counts: Counter[str] = Counter()
    async for row in rows:
        is_left_out = not with_events and isinstance(row, TransitionRow) and _is_usual(row)
        counts.update([_kind_of(row, is_left_out)])
        if is_left_out:
            continue
        line = Text()
        line.append(f"{row.shard}/{row.seq:<7}", style="dim")
        line.append_text(_LINES[type(row)](row))
        console.print(line, soft_wrap=True)
    console.print(Text(_summary(counts), style="bold"), soft_wrap=True)


def _is_usual(row: TransitionRow) -> bool:
    return row.attempt <= 1 and row.from_state in USUAL_STATES and row.to_state in USUAL_STATES


def _kind_of(row: LogRow, is_left_out: bool) -> str:
    return "left out" if is_left_out else row.verdict if isinstance(row, PacketRow) else type(row).__name__


def _summary(counts: Mapping[str, int]) -> str:
    verdicts = {verdict: counts[verdict] for verdict in _VERDICTS if counts.get(verdict)}
    said = ", ".join(f"{count:,} {verdict}" for verdict, count in verdicts.items())
    packets = numbered(sum(verdicts.values()), "packet") + (f" ({said})" if said else "")
    words = f"{packets}, {numbered(counts.get(CoordinationRow.__name__, 0), 'step')} of the session"
    if not (left_out := counts.get("left out")):
        return words
    usual = numbered(left_out, "usual transition of a packet is", "usual transitions of packets are")
    return f"{words}; {usual} not shown (--events shows them)"


def _packet_line(row: PacketRow) -> Text:
    style = _VERDICTS[row.verdict]
    text = Text(f"{show(row.judged_at)}  ")
    text.append(f"{row.verdict:<9}", style=style)
    text.append(f"{row.packet_type:<12}", style="bold")
    text.append(f"{row.sender_agent_id} → {', '.join(row.recipients) or '-'}  ")
    text.append(f"{row.run_phase} r{row.round} g{row.generation}  {row.packet_id}", style="dim")
    if row.refusal is not None:
        text.append(f"  {row.refusal['code']} at {row.refusal['path']}: {row.refusal['message']}", style="red")
        _append_own(text, row.refusal, style="red")
    if row.facts.get("warnings"):
        text.append(f"  warning: {', '.join(row.facts['warnings'])}", style="yellow")
    return text


def _transition_line(row: TransitionRow) -> Text:
    to_whom = f" [{row.recipient} #{row.attempt}]" if row.recipient else ""
    text = Text(f"{' ' * 25}{row.event}: {row.from_state} → {row.to_state}{to_whom}  {row.packet_id}", style="dim")
    refusal = (row.metadata or {}).get("refusal")
    if refusal is not None and row.to_state == "REJECTED_POLICY":
        text.append(f"  {refusal['code']} at {refusal['path']}: {refusal['message']}", style="not dim red")
        _append_own(text, refusal, style="not dim red")
    return text


def _append_own(text: Text, refusal: Mapping[str, Any], style: str) -> None:
    """Add what a team's rule says of its refusal, one sentence per line."""
    for sentence in own_sentences(refusal):
        text.append(f"\n{' ' * 25}{one_line(sentence)}", style=style)


def _coordination_line(row: CoordinationRow) -> Text:
    place = f"step {row.step}, round {row.round}, generation {row.generation}"
    return Text(f"{' ' * 25}{row.event}: {row.from_state} → {row.to_state}  ({place})", style="bold cyan")


def _conflict_line(row: ConflictRow) -> Text:
    code = f"{row.code} " if row.code else ""
    by = f" by {row.user_id}" if row.user_id else ""
    return Text(f"{show(row.recorded_at)}  {row.conflict}{by}  {row.packet_id or ''}  {code}{row.reason}", style="red")


_LINES: Mapping[type, Callable[[Any], Text]] = {
    PacketRow: _packet_line,
    TransitionRow: _transition_line,
    CoordinationRow: _coordination_line,
    ConflictRow: _conflict_line,
}
_VERDICTS = {"accepted": "green", "refused": "red", "held": "yellow"}


# `apc packet replay --verify` and `--what-if`: recompute a run, or judge it under another contract.


async def print_verified(
    run_id: str | None,
    bundle: Path | None,
    contract_files: Iterable[Path],
    what_if: Path | None,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print the result of replaying a run from the database or from a bundle.

    Raises:
        InputUnusable: there is nothing of the run.
        BundleUnreadable: the file is no bundle.
        LogDiffers: the first entry that differs or cannot be recomputed.
    """
    contracts = [load_contract(), *map(load_contract, contract_files)]
    other = None if what_if is None else load_contract(what_if)
    if bundle is not None:
        held = BundleRecords(read_bytes(bundle).splitlines())
        run_id = run_id or held.run_id
        replayed = await verify_run(held, run_id, contracts, other)
    elif run_id is None:
        raise InputUnusable("name the run with --run-id, or its bundle with --bundle")
    else:
        async with open_log() as pool, read_recorded(pool) as records:
            replayed = await verify_run(records, run_id, contracts, other)
    if not replayed.sessions:
        raise InputUnusable(f"there is no session of run {run_id!r}")
    _show(replayed, out, is_what_if=other is not None, as_json=as_json)
    if replayed.problem is not None:
        raise LogDiffers(f"run {run_id}: {replayed.problem}")


def _show(replayed: Replayed, out: Path | None, *, is_what_if: bool, as_json: bool) -> None:
    if out is not None:
        write_bytes(out, to_json(_document(replayed)) + b"\n")
    elif wants_json(as_json):
        print_json(_document(replayed))
    else:
        _print(replayed, is_what_if=is_what_if)


def _document(replayed: Replayed) -> dict[str, Any]:
    problem = replayed.problem
    return {
        "run_id": replayed.run_id,
        "is_verified": problem is None,
        "sessions": replayed.sessions,
        "packets": replayed.packets,
        "hops": replayed.hops,
        "transitions": replayed.transitions,
        "problem": None if problem is None else problem.document,
        "decisions": replayed.decisions,
        "changes": [_row(change) for change in replayed.changes],
    }


def _row(change: Any) -> dict[str, Any]:
    return {
        "entry": f"{change.shard}/{change.seq}",
        "what": change.what,
        "packet_id": change.packet_id,
        "was": change.was,
        "would_be": change.would_be,
    }


def _print(replayed: Replayed, *, is_what_if: bool) -> None:
    if replayed.problem is None:
        echo(
            f"run {replayed.run_id}: recomputed {numbered(replayed.packets, 'verdict')}, "
            f"{numbered(replayed.hops, 'hop')} and {numbered(replayed.transitions, 'transition')} "
            f"in {numbered(replayed.sessions, 'session')}; all as recorded"
        )
    if is_what_if:
        rows = [_row(change) for change in replayed.changes]
        print_rows(
            rows,
            title=f"{len(rows)} of {numbered(replayed.decisions, 'decision')} would have been different",
            as_json=False,
            empty=f"none of {numbered(replayed.decisions, 'decision')} would have been different",
        )

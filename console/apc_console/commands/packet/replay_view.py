"""A replayed run as lines at a terminal: packets, what is unusual about their lifecycle, the steps of the session."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from apc_console.output.cells import show
from apc_contracts.text import numbered
from apc_log.queries import ConflictRow, CoordinationRow, LogRow, PacketRow, TransitionRow

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
    from rich.text import Text

    from apc_console.output.safe_console import SafeConsole

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


def _packet_line(row: PacketRow) -> Any:
    from rich.text import Text

    style = _VERDICTS[row.verdict]
    text = Text(f"{show(row.judged_at)}  ")
    text.append(f"{row.verdict:<9}", style=style)
    text.append(f"{row.packet_type:<12}", style="bold")
    text.append(f"{row.sender_agent_id} → {', '.join(row.recipients) or '-'}  ")
    text.append(f"{row.run_phase} r{row.round} g{row.generation}  {row.packet_id}", style="dim")
    if row.refusal is not None:
        text.append(f"  {row.refusal['code']} at {row.refusal['path']}: {row.refusal['message']}", style="red")
    if row.facts.get("warnings"):
        text.append(f"  warning: {', '.join(row.facts['warnings'])}", style="yellow")
    return text


def _transition_line(row: TransitionRow) -> Any:
    from rich.text import Text

    to_whom = f" [{row.recipient} #{row.attempt}]" if row.recipient else ""
    text = Text(f"{' ' * 25}{row.event}: {row.from_state} → {row.to_state}{to_whom}  {row.packet_id}", style="dim")
    refusal = (row.metadata or {}).get("refusal")
    if refusal is not None and row.to_state == "REJECTED_POLICY":
        text.append(f"  {refusal['code']} at {refusal['path']}: {refusal['message']}", style="not dim red")
    return text


def _coordination_line(row: CoordinationRow) -> Any:
    from rich.text import Text

    place = f"step {row.step}, round {row.round}, generation {row.generation}"
    return Text(f"{' ' * 25}{row.event}: {row.from_state} → {row.to_state}  ({place})", style="bold cyan")


def _conflict_line(row: ConflictRow) -> Any:
    from rich.text import Text

    code = f"{row.code} " if row.code else ""
    by = f" by {row.user_id}" if row.user_id else ""
    return Text(f"{show(row.recorded_at)}  {row.conflict}{by}  {row.packet_id or ''}  {code}{row.reason}", style="red")


_LINES: Mapping[type, Callable[[Any], Any]] = {
    PacketRow: _packet_line,
    TransitionRow: _transition_line,
    CoordinationRow: _coordination_line,
    ConflictRow: _conflict_line,
}
_VERDICTS = {"accepted": "green", "refused": "red", "held": "yellow"}

"""What came of packets: how protocols spread, what a packet has caused, what rests on it, and its retraction."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

import asyncpg
import typer
from rich.text import Text
from rich.tree import Tree

from apc_bus.settings import BusSettings, OrchestratorSettings
from apc_cli.commands.group import After, ContractFile, packet_uuid, whole_run_id, whole_session_id
from apc_cli.connections import broker_user, open_bus, open_log
from apc_cli.errors import InputUnusable
from apc_cli.output.files import read_cursor, write_cursor
from apc_cli.output.output import AsJson, print_json, print_rows, wants_json
from apc_cli.output.safe_console import SafeConsole
from apc_cli.output.terminal import echo
from apc_contracts.contract.contract import Contract, load_contract
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.identity.registry import Registration
from apc_contracts.packet import Packet, Trace
from apc_contracts.payloads.by_type import RetractionPayload
from apc_contracts.text import numbered
from apc_contracts.vocabulary import ORCHESTRATOR, RunPhase
from apc_log.queries import (
    AfterProtocol,
    LineageSummary,
    LoggedEffect,
    PacketImpact,
    PacketRow,
    PacketTree,
    TreeRow,
    effects_of,
    get_packet_grounds,
    get_packet_impact,
    get_packet_lineage_summary,
    get_packet_tree,
    trace,
)
from apc_log.registry import registered_agents


async def lineage_summary(
    run_id: Annotated[
        str | None, typer.Option(help="Only what was transferred in this run.", parser=whole_run_id)
    ] = None,
    protocol_id: Annotated[str | None, typer.Option(help="Only this protocol.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many rows of each kind.")] = 20,
    after: After = None,
    contract_file: ContractFile = None,
    as_json: AsJson = False,
) -> None:
    """Print how protocols spread and perform: effectiveness, modes, drift, propagation, arbitrations, decay.

    It covers TRANSFERs and ARBITRATIONs; other packets are shown by `apc packet trace`.
    """
    behind = None if after is None else AfterProtocol(*read_cursor(after, int, str))
    async with open_log() as pool:
        summary = await get_packet_lineage_summary(
            pool, load_contract(contract_file), run_id=run_id, protocol_id=protocol_id, limit=limit, after=behind
        )
        is_unknown = run_id is not None and not await _has_packets(pool, run_id)
    if protocol_id is not None and not summary.propagation:
        where = "the log" if run_id is None else f"run {run_id!r}"
        raise InputUnusable(f"--protocol-id: {where} holds no TRANSFER of protocol {protocol_id!r}")
    if is_unknown:
        raise InputUnusable(f"the log holds no packet of run_id {run_id}")
    cursor = None if summary.after is None else write_cursor(*summary.after)
    if wants_json(as_json):
        print_json({**asdict(summary), "after": cursor})
        return
    _print_summary(summary)
    if summary.archived_until is not None:
        until = summary.archived_until.isoformat(timespec="seconds")
        echo(f"arbitrations up to {until} are in the archive, and not among these", file=sys.stderr)
    if cursor is not None:
        echo(f"more protocols: --after {cursor}", file=sys.stderr)


def _print_summary(summary: LineageSummary) -> None:
    parts: Sequence[tuple[str, Sequence[Any]]] = (
        ("protocols, by transfers that count", summary.protocols),
        ("transfer modes", summary.modes),
        ("outcome and drift of tasks against accepted transfers", summary.correlation),
        ("refused transfers", [{"code": code, "transfers": number} for code, number in summary.refusals.items()]),
        ("propagation: the latest transfers", summary.propagation),
        ("arbitrations: the latest", summary.arbitrations),
        ("decay decisions: the latest", summary.decay_decisions),
    )
    if not any(records for _, records in parts):
        echo("no TRANSFER, arbitration or decay decision: this summary covers nothing else (`apc packet trace` does)")
        return
    for title, records in parts:
        rows = [_short(row) for row in records]
        print_rows(rows, title=title, as_json=False, empty=f"{title}: none")


async def _has_packets(pool: asyncpg.Pool, run_id: str) -> bool:
    return bool((await trace(pool, run_id=run_id, limit=1, with_events=False)).packets)


_LEFT_OUT = frozenset({"shard", "seq", "parent_protocol_ids", "session_id"})


def _short(row: Any) -> dict[str, Any]:
    """Return the columns that fit into a table; JSON has all."""
    values = row if isinstance(row, Mapping) else asdict(row)
    return {name: value for name, value in values.items() if name not in _LEFT_OUT}


# `apc packet tree`: a causal tree as text, JSON, Graphviz or Mermaid.


async def tree(
    packet_id: Annotated[UUID, typer.Argument(metavar="PACKET_ID", help="The root of the tree.", parser=packet_uuid)],
    session_id: Annotated[
        str | None, typer.Option(help="The session, when several have the id.", parser=whole_session_id)
    ] = None,
    dot: Annotated[bool, typer.Option("--dot", help="For Graphviz.")] = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="A Mermaid flowchart.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many packets.")] = 500,
    as_json: AsJson = False,
) -> None:
    """Print what a packet has caused, as a tree."""
    if dot and mermaid:
        raise InputUnusable("--dot and --mermaid are two forms: choose one")
    async with open_log() as pool:
        caused = await get_packet_tree(pool, packet_id, session_id=session_id, limit=limit)
        if caused is None:
            raise InputUnusable(f"the log holds no packet {packet_id}")
        effects = await effects_of(pool, [(row.session_id, row.packet_id) for row in caused.rows])
    if dot or mermaid:
        echo("\n".join(dot_lines(caused.rows) if dot else mermaid_lines(caused.rows)))
    elif wants_json(as_json):
        entries = [asdict(row) for found in effects.values() for effect in found for row in effect.entries]
        print_json({"packets": [asdict(row) for row in caused.rows], "effects": entries, "is_cut": caused.is_cut})
    else:
        _print_tree(caused, effects)
    if caused.is_cut:
        echo(f"there is more: {numbered(limit, 'packet was', 'packets were')} printed (--limit)", file=sys.stderr)


def dot_lines(rows: Sequence[TreeRow]) -> Iterator[str]:
    """Yield a Graphviz digraph.

    Ids and names of agents consist of letters, digits and `._:-`: nothing in them ends a string.
    """
    yield "digraph packets {"
    yield "  rankdir=LR; node [shape=box, fontname=monospace];"
    for row in rows:
        yield f'  "{row.packet_id}" [label="{_label(row, chr(92) + "n")}"];'
    for row in rows:
        if row.above is not None:
            style = "" if row.edge == "cause" else " [style=dashed]"
            yield f'  "{row.above}" -> "{row.packet_id}"{style};'
    yield "}"


def mermaid_lines(rows: Sequence[TreeRow]) -> Iterator[str]:
    """Yield a Mermaid flowchart; dotted arrows lead to packets that name a parent only."""
    names = {row.packet_id: f"p{number}" for number, row in enumerate(rows)}
    yield "flowchart LR"
    for row in rows:
        yield f'  {names[row.packet_id]}["{_label(row, "<br/>")}"]'
    for row in rows:
        if row.above is not None:
            arrow = "-->" if row.edge == "cause" else "-.->"
            yield f"  {names[row.above]} {arrow} {names[row.packet_id]}"


def _label(row: TreeRow, line_break: str) -> str:
    verdict = row.refusal_code or row.verdict
    parts = (row.packet_type, f"{row.sender_agent_id} g{row.generation}", verdict, f"…{str(row.packet_id)[-8:]}")
    return line_break.join(parts)


def _print_tree(tree: PacketTree, effects: Mapping[tuple[str, UUID], Sequence[LoggedEffect]]) -> None:
    branches: dict[UUID, Tree] = {}
    for row in tree.rows:
        line = _line(row)
        branch = branches[row.packet_id] = Tree(line) if row.above is None else branches[row.above].add(line)
        for effect in effects.get((row.session_id, row.packet_id), ()):
            branch.add(Text(effect.words, style="red" if effect.state == "unknown" else "cyan"))
    SafeConsole().print(branches[tree.rows[0].packet_id])


def _line(row: TreeRow) -> Text:
    style = {"accepted": "green", "refused": "red", "held": "yellow"}[row.verdict]
    text = Text(f"{row.packet_type} ", style="bold")
    text.append(f"{row.sender_agent_id} → {', '.join(row.recipients) or '-'} ", style="default")
    text.append(row.refusal_code or row.verdict, style=style)
    text.append(f"  {row.run_phase} g{row.generation}  {row.packet_id}", style="dim")
    return text


# `apc packet impact` and `apc packet retract`: what rests on a packet, what it rests on, and its retraction.

LEAST = ("seq", "shard", "run_phase", "round", "generation", "judged_at")
"""The first columns that a narrow terminal leaves out."""

PacketId = Annotated[UUID, typer.Argument(metavar="PACKET_ID", help="The packet.", parser=packet_uuid)]
OfSession = Annotated[
    str | None, typer.Option("--session-id", help="The session, when several have the id.", parser=whole_session_id)
]


async def impact(
    packet_id: PacketId,
    session_id: OfSession = None,
    rests_on: Annotated[
        bool, typer.Option("--rests-on", help="The reverse: list what the packet itself rests on, such as evidence.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List everything that rests on a packet: what its retraction would mark stale."""
    if not rests_on:
        async with open_log() as pool:
            _print(await _impact(pool, packet_id, session_id), as_json=as_json)
        return
    nothing = _contract().retraction.rests_on_nothing
    async with open_log() as pool:
        known = await get_packet_grounds(pool, packet_id, session_id=session_id, rests_on_nothing=nothing)
    if known is None:
        raise _unknown(packet_id, session_id)
    title = f"{packet_id} rests on {numbered(len(known.grounds), 'packet')}"
    rows: list[dict[str, Any]] = [asdict(row) for row in known.grounds]
    print_rows(rows, title=title, as_json=as_json, empty=f"{packet_id} rests on nothing", least=LEAST)


async def retract(
    packet_id: PacketId,
    reason: Annotated[str, typer.Option(help="The reason, which the log keeps.")],
    replacement: Annotated[UUID | None, typer.Option(help="The packet that replaces it.", parser=packet_uuid)] = None,
    session_id: OfSession = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be stale.")] = False,
    as_json: AsJson = False,
) -> None:
    """Retract a packet as its sender, and list what is stale now. Nothing is deleted."""
    from apc_client.sending import send_packet  # it brings the whole system along

    async with open_log() as pool:
        resting = await _impact(pool, packet_id, session_id, replacement)
        if not dry_run:
            settings = BusSettings()
            sender = await _sender(pool, resting.packet, broker_user(settings))
            packet = _retraction_of(resting.packet, sender, reason, replacement)
            async with open_bus(settings) as bus:
                answer = await send_packet(bus, pool, packet, settings.shards)
            if answer.reason is not None:
                raise InputUnusable(f"the gate refused the RETRACTION: {answer.reason}")
            resting = await _impact(pool, packet_id, resting.packet.session_id, replacement)
        _print(resting, as_json=as_json)


def _retraction_of(target: PacketRow, sender: Registration, reason: str, replacement: UUID | None) -> Packet:
    """Return the RETRACTION of a logged packet by its sender, to the orchestrator."""
    from apc_client.sending import direct_packet

    place = Trace(
        session_id=target.session_id,
        run_id=target.run_id,
        task_id=target.task_id,
        root_packet_id=target.root_packet_id,
        parent_packet_id=target.packet_id,
        generation=target.generation,
        step=target.step,
    )
    return direct_packet(
        sender,
        RetractionPayload(target_packet_id=target.packet_id, reason=reason, replacement_packet_id=replacement),
        ORCHESTRATOR,
        place,
        packet_id=new_packet_id(),
        run_phase=RunPhase(target.run_phase),
        ttl_ms=_contract().session.emission_ttl_ms,
    )


async def _impact(
    pool: asyncpg.Pool, packet_id: UUID, session_id: str | None, replacement: UUID | None = None
) -> PacketImpact:
    nothing = _contract().retraction.rests_on_nothing
    impact = await get_packet_impact(
        pool, packet_id, session_id=session_id, rests_on_nothing=nothing, replacement=replacement
    )
    if impact is None:
        raise _unknown(packet_id, session_id)
    return impact


def _unknown(packet_id: UUID, session_id: str | None) -> InputUnusable:
    where = f" in session {session_id}" if session_id else ""
    return InputUnusable(f"the log holds no packet {packet_id}{where}")


async def _sender(pool: asyncpg.Pool, target: PacketRow, user: str) -> Registration:
    """Return the packet's sender, if the user of APC_AMQP_URL may speak for it; the gate would refuse any other."""
    agent_id = target.sender_agent_id
    if agent_id == ORCHESTRATOR:
        raise InputUnusable(f"the orchestrator sent packet {target.packet_id}: it alone can take it back")
    sender = next((one for one in await registered_agents(pool) if one.agent_id == agent_id), None)
    if sender is None:
        raise InputUnusable(f"{agent_id}, who sent packet {target.packet_id}, is not registered: only it can retract")
    if sender.broker_user != user:
        raise InputUnusable(
            f"{agent_id} sent packet {target.packet_id} and alone can retract it: "
            f"log in to APC_AMQP_URL as its broker user {sender.broker_user}, not as {user}"
        )
    return sender


def _contract() -> Contract:
    """Return the contract that the gate judges by."""
    return load_contract(OrchestratorSettings().contract)


def _print(impact: PacketImpact, *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [asdict(row) for row in impact.resting]
    title = f"{numbered(len(rows), 'packet rests', 'packets rest')} on {impact.packet.packet_id}"
    empty = f"nothing rests on {impact.packet.packet_id}"
    print_rows(rows, title=title, as_json=as_json, empty=empty, least=LEAST)

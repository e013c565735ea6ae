"""`apc packet`: validate and arbitrate by contract; read the log by run, session or packet; retract a packet."""

import sys
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from apc_console.errors import InputUnusable
from apc_console.output.output import AsJson
from apc_console.output.terminal import echo
from apc_contracts.vocabulary import PacketType, RunPhase

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
    from apc_contracts.contract.contract import load_contract
    from apc_contracts.judging.offline import validate_offline

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
    from apc_console.commands.packet.transfer_file import print_arbitration, read_packets
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
    from apc_console.commands.packet.packets_view import Filters, print_trace
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
    from apc_console.commands.packet.refused_view import RefusalFilter, print_refused
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
    from apc_console.commands.packet.lineage_view import print_lineage_summary
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
    from apc_console.commands.packet.tree_view import print_tree
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
        from apc_console.commands.packet.packets_view import print_replay

        run_quietly(print_replay(run_id, task_id, out, limit=limit, after=after, with_events=events, as_json=as_json))
        return
    if task_id is not None or limit is not None or after is not None:
        raise InputUnusable("--verify and --what-if take a run whole: leave --task-id, --limit and --after out")
    from apc_console.commands.packet.replaying import print_verified

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
    from apc_console.commands.packet.retraction import print_grounds, print_impact
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
    from apc_console.commands.packet.retraction import retract as send
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
    from apc_console.commands.packet.substrate_view import offset_of, print_substrate
    from apc_console.system.running import run_quietly

    run_quietly(print_substrate(offset_of(begin), limit=limit, follow=follow, as_json=as_json))

"""`apc dead-letter`: look at permanently failed deliveries, requeue them, discard them."""

from typing import Annotated

import typer

from apc_console.output.output import AsJson, print_rows
from apc_contracts.text import numbered
from apc_contracts.wire.receipts import ReceiptKind

app = typer.Typer(help="List, show, requeue and discard dead letters.", no_args_is_help=True)

NOTHING = "no such delivery is dead"

SessionId = Annotated[str | None, typer.Option("--session", metavar="ID", help="Only of this session.")]
AgentId = Annotated[str | None, typer.Option("--agent", metavar="ID", help="Only deliveries to this agent.")]
Reason = Annotated[
    str | None,
    typer.Option(
        help="Only with a reason that begins with this: handler_error, delivery_limit, overflow, retry_limit…"
    ),
]
PacketIds = Annotated[list[str] | None, typer.Argument(metavar="PACKET_ID…", help="The packets.")]
All = Annotated[bool, typer.Option("--all", help="Everything that is dead and that the filters let through.")]
Note = Annotated[str | None, typer.Option(help="The reason, which the log keeps.")]


@app.command("list")
def list_(
    session_id: SessionId = None,
    agent_id: AgentId = None,
    reason: Reason = None,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many deliveries.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print dead deliveries, oldest first: packet, recipient, attempt, reason and since when."""
    from apc_console.commands.dead_letter.dead_letters_view import Filter, dead_rows
    from apc_console.system.running import run_quietly

    rows = run_quietly(dead_rows(Filter(session_id, agent_id, reason), limit=limit))
    print_rows(rows, title="dead letters", as_json=as_json, empty=NOTHING)


@app.command()
def show(
    packet_id: Annotated[str, typer.Argument(metavar="PACKET_ID", help="The packet.")],
    session_id: SessionId = None,
    agent_id: AgentId = None,
    as_json: AsJson = False,
) -> None:
    """Print a packet's dead deliveries with everything that happened to them, attempt by attempt."""
    from apc_console.commands.dead_letter.dead_letters_view import Filter, dead_documents, print_documents
    from apc_console.system.running import run_quietly

    print_documents(run_quietly(dead_documents(packet_id, Filter(session_id, agent_id))), as_json=as_json)


@app.command()
def requeue(
    packet_ids: PacketIds = None,
    is_all: All = False,
    session_id: SessionId = None,
    agent_id: AgentId = None,
    reason: Reason = None,
    note: Note = None,
    as_json: AsJson = False,
) -> None:
    """Deliver dead packets again, under their ids, as their next attempt; wait until the log shows it."""
    narrowed = (session_id, agent_id, reason)
    _settle(ReceiptKind.REQUEUE, packet_ids, narrowed, is_all=is_all, note=note, as_json=as_json)


@app.command()
def discard(
    packet_ids: PacketIds = None,
    is_all: All = False,
    session_id: SessionId = None,
    agent_id: AgentId = None,
    reason: Reason = None,
    note: Note = None,
    as_json: AsJson = False,
) -> None:
    """Discard dead packets: they are archived and never delivered again."""
    narrowed = (session_id, agent_id, reason)
    _settle(ReceiptKind.DISCARD, packet_ids, narrowed, is_all=is_all, note=note, as_json=as_json)


def _settle(
    kind: ReceiptKind,
    packet_ids: list[str] | None,
    narrowed: tuple[str | None, str | None, str | None],
    *,
    is_all: bool,
    note: str | None,
    as_json: bool,
) -> None:
    from apc_console.commands.dead_letter.dead_letters_control import settle_dead
    from apc_console.commands.dead_letter.dead_letters_view import Filter
    from apc_console.system.running import run_quietly

    rows = run_quietly(settle_dead(kind, packet_ids or (), Filter(*narrowed), is_all=is_all, note=note))
    print_rows(rows, title=f"{kind}: {numbered(len(rows), 'delivery', 'deliveries')}", as_json=as_json, empty=NOTHING)

"""`apc tail`: the options of the command."""

from typing import Annotated

import typer

from apc_console.output.output import AsJson
from apc_contracts.vocabulary import PacketType


def tail(
    session_id: Annotated[
        str | None, typer.Argument(metavar="[SESSION_ID]", help="Only this session; the command ends with it.")
    ] = None,
    packet_type: Annotated[PacketType | None, typer.Option("--type", help="Only packets of this type.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only packets from this agent or to it.")] = None,
    last: Annotated[int, typer.Option(min=1, help="Begin with at most this many of the newest entries.")] = 20,
    limit: Annotated[int | None, typer.Option(min=1, help="End after this many entries.")] = None,
    as_json: AsJson = False,
) -> None:
    """Follow the log: packets with their verdicts, retries, dead letters, steps of sessions, and conflicts."""
    from apc_console.commands.tail.view import Wanted, follow
    from apc_console.system.running import run_quietly

    run_quietly(follow(Wanted(session_id, packet_type, agent), last=last, limit=limit, as_json=as_json))

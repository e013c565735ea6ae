"""`apc run`: a team on one input."""

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from apc_console.commands.person_option import people_of
from apc_console.commands.ui import WithUi
from apc_console.output.terminal import echo


def run(
    team: Annotated[str, typer.Argument(metavar="MODULE:TEAM", help="Where the team is, as package.module:name.")],
    file: Annotated[
        Path, typer.Option("--input", metavar="FILE", help="The input as JSON; - reads the standard input.")
    ],
    key: Annotated[
        str | None, typer.Option(help="The same key and input lead to the same session; default a new one.")
    ] = None,
    person: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:ROLE",
            help="Somebody who answers questions to this role here and, as NAME:operator, may act on sessions; "
            "repeatable.",
        ),
    ] = None,
    ui: WithUi = False,
) -> None:
    """Run a team on one input and print its result as JSON: in this process, or over RabbitMQ with APC_AMQP_URL.

    Exits with 3 when the session halted without a result.
    """
    from apc_console.system.running import run as run_coroutine
    from apc_console.system.teams import run_team

    def show(outcome: dict[str, Any]) -> None:
        echo(orjson.dumps(outcome, option=orjson.OPT_INDENT_2).decode(), flush=True)

    run_coroutine(run_team(team, file, show, key=key, people=people_of(person or ()), ui=ui))

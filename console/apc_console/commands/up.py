"""`apc up`: the whole system."""

from pathlib import Path
from typing import Annotated

import typer

from apc_console.commands.person_option import people_of
from apc_console.commands.ui import WithUi


def up(
    agent: Annotated[
        list[str] | None, typer.Option(metavar="MODULE:AGENT", help="An agent or a team to run, too; may be repeated.")
    ] = None,
    chaos: Annotated[
        Path | None,
        typer.Option(
            metavar="PROFILE", help="Inject the faults of this TOML file into the agents' messages; prints a scorecard."
        ),
    ] = None,
    person: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:ROLE",
            help="Somebody who may answer questions to this role and, as NAME:operator, act on sessions; repeatable. "
            "Without a broker only.",
        ),
    ] = None,
    ui: WithUi = False,
) -> None:
    """Run everything until SIGTERM: in this process by default, with an embedded PostgreSQL and no broker.

    With APC_AMQP_URL and APC_DATABASE_URL set, run one process per service and agent, restarted when it dies.
    """
    from apc_console.system.running import run_service
    from apc_console.system.up import run_everything

    run_service("system", run_everything(agent or [], chaos, people_of(person or ()), ui=ui))

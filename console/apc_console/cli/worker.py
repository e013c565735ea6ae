"""`apc worker`: one agent in this process."""

from typing import Annotated

import typer


def worker(
    agent: Annotated[str, typer.Argument(metavar="MODULE:AGENT", help="Where the agent is, as package.module:name.")],
) -> None:
    """Run an agent against the broker of APC_AMQP_URL until SIGTERM, which drains it."""
    from apc_agents.loading import load_agent
    from apc_agents.service import run_worker
    from apc_console.logs import configure
    from apc_console.running import run
    from apc_console.settings import ConsoleSettings

    configure(ConsoleSettings().log_level)
    run(run_worker(load_agent(agent)))

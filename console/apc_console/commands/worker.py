"""`apc worker`: one agent in this process."""

from typing import Annotated

import typer


def worker(
    agent: Annotated[str, typer.Argument(metavar="MODULE:AGENT", help="Where the agent is, as package.module:name.")],
) -> None:
    """Run an agent against the broker of APC_AMQP_URL until SIGTERM, which drains it."""
    from apc_console.system.running import run_agent, run_service

    run_service(f"worker of {agent}", run_agent(agent))

"""`apc ui`: the web console on this machine."""

from typing import Annotated

import typer

RunOption = Annotated[str | None, typer.Option("--run", metavar="RUN_ID", help="The run to open first.")]
ListenOption = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="The address to listen on; beyond loopback only with accounts.")
]
AgentOption = Annotated[
    str | None,
    typer.Option("--agent", metavar="MODULE:AGENT", help="The agent to chat with; default the model of APC_LLM_MODEL."),
]
ReadOnlyOption = Annotated[bool, typer.Option("--read-only", help="Offer no acts, no matter who asks.")]


def ui(
    run_id: RunOption = None,
    listen: ListenOption = "127.0.0.1:8083",
    read_only: ReadOnlyOption = False,
    agent: AgentOption = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Open the web console for the log of the data folder, or of APC_DATABASE_URL; it never migrates."""
    from apc_console.commands.web.serving import WebForm, serve_web
    from apc_console.system.running import run_quietly

    run_quietly(serve_web(WebForm(run_id, listen, read_only, opens_browser=browser, agent=agent)))

"""`apc serve`: the services, one per process."""

from typing import Annotated

import typer

from apc_console.commands.chat import AgentOption

app = typer.Typer(help="Run a service.", no_args_is_help=True)


@app.command()
def orchestrator() -> None:
    """Run the gate: judge inputs, log them, deliver them. Several processes are hot standbys of each other."""
    from apc_console.commands.serve.services import run_orchestrator
    from apc_console.system.running import run_service

    run_service("orchestrator", run_orchestrator())


@app.command()
def persister() -> None:
    """Run the log writer: apply log batches to Postgres, one transaction each."""
    from apc_console.commands.serve.services import run_persister
    from apc_console.system.running import run_service

    run_service("persister", run_persister())


@app.command()
def tiles(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="The address to listen on.")] = "127.0.0.1:8081",
) -> None:
    """Serve checkpoints and tiles of the log for monitors and witnesses: /checkpoint and /tile/ of C2SP tlog-tiles."""
    from apc_bus.settings import ConsoleSettings
    from apc_console.commands.serve.log_tiles import serve_tiles
    from apc_console.system.logs import configure
    from apc_console.system.running import run_service

    configure(ConsoleSettings().log_level)
    run_service("server of tiles", serve_tiles(listen))


@app.command()
def artifacts(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="The address to listen on.")] = "127.0.0.1:8082",
) -> None:
    """Accept artifacts from agents that may only read the store: each once, under the hash of its bytes."""
    from apc_bus.settings import ConsoleSettings
    from apc_console.commands.serve.artifact_uploads import serve_artifacts
    from apc_console.system.logs import configure
    from apc_console.system.running import run_service

    configure(ConsoleSettings().log_level)
    run_service("server of artifacts", serve_artifacts(listen))


@app.command()
def chat(
    agent: AgentOption = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="The address to listen on.")] = "127.0.0.1:8080",
) -> None:
    """Serve the frontend contract as JSON: what a web page needs to talk to an agent (docs/how-to/chat.md)."""
    from apc_bus.settings import ConsoleSettings
    from apc_console.api import ChatServiceForm, serve_chat
    from apc_console.system.logs import configure
    from apc_console.system.running import run_service

    configure(ConsoleSettings().log_level)
    run_service("server of chats", serve_chat(ChatServiceForm(agent, listen)))


@app.command()
def web(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The address to listen on; beyond loopback only with accounts.")
    ] = "127.0.0.1:8083",
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer no acts, no matter who asks.")] = False,
) -> None:
    """Serve the web console: the HTTP API and its page (docs/how-to/web-console.md)."""
    from apc_bus.settings import ConsoleSettings
    from apc_console.commands.web.serving import WebForm, serve_web
    from apc_console.system.logs import configure
    from apc_console.system.running import run_service

    configure(ConsoleSettings().log_level)
    run_service("web console", serve_web(WebForm(None, listen, read_only, opens_browser=False, is_service=True)))

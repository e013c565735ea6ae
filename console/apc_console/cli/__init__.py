"""The `apc` command. One module a command group; what a command needs is imported when it runs, so that
`apc worker` starts without the server's libraries. Applications add their own groups."""

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError

from apc_console import __version__
from apc_console.cli import (
    agents,
    arbitrations,
    contract,
    dead,
    effects,
    keys,
    log,
    memory,
    packet,
    protocols,
    serve,
    session,
    task,
    topology,
)
from apc_console.cli.applications import add_applications
from apc_console.cli.asyncapi import asyncapi
from apc_console.cli.chat import chat
from apc_console.cli.config import config
from apc_console.cli.doctor import doctor
from apc_console.cli.migrate import migrate
from apc_console.cli.openlineage import openlineage
from apc_console.cli.up import up
from apc_console.cli.worker import worker
from apc_console.settings_errors import sentence_of
from apc_console.terminal import echo
from apc_contracts.errors import ApcError
from apc_contracts.terminal_text import one_line

__all__ = ["app", "main"]

app = typer.Typer(
    name="apc",
    help="A message bus for swarms of agents: packets admitted by contract, written to an append-only log.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(up)
app.command()(worker)
app.command()(chat)
app.add_typer(packet.app, name="packet")
log.app.command()(openlineage)
app.add_typer(log.app, name="log")
app.add_typer(protocols.app, name="protocols")
app.add_typer(arbitrations.app, name="arbitrations")
app.add_typer(contract.app, name="contract")
app.add_typer(dead.app, name="dead")
app.add_typer(agents.app, name="agents")
app.add_typer(keys.app, name="keys")
app.add_typer(session.app, name="session")
app.add_typer(task.app, name="task")
app.add_typer(effects.app, name="effects")
app.add_typer(memory.app, name="memory")
app.add_typer(topology.app, name="topology")
app.add_typer(serve.app, name="serve")
app.command()(asyncapi)
app.command()(migrate)
app.command()(config)
app.command()(doctor)
add_applications(app)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        echo(f"apc {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="The version, and exit.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: every expected failure is one line on stderr and a code, never a traceback."""
    try:
        code = app(args=arguments, prog_name="apc", standalone_mode=False)
    except typer.TyperException as error:
        _fail(error.format_message(), error.exit_code)
    except ApcError as error:
        _fail(str(error), getattr(error, "exit_code", 2))
    except ModuleNotFoundError as error:
        if str(error.name).startswith("apc_"):
            raise
        _fail(f"this needs {error.name}, which is not installed: pip install 'apc-bus[server,embedded,automl,llm]'", 2)
    except ValidationError as error:
        _fail(sentence_of(error), 2)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        # The reader of a pipe left (`apc packet trace | head`): nothing to say, and nowhere to say it.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    if message:  # `apc` alone prints its help, and says no more
        echo(f"apc: {one_line(message)}", file=sys.stderr)
    sys.exit(code)

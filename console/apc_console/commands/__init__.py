"""The `apc` command, one module per command group.

What a command needs is imported when it runs, so that `apc worker` starts without the server's libraries. Applications
add their own groups.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError

from apc_bus.settings.services import check_names
from apc_console import __version__
from apc_console.commands.agent import app as agent
from apc_console.commands.applications import add_applications
from apc_console.commands.approval import app as approval
from apc_console.commands.arbitration import app as arbitration
from apc_console.commands.asyncapi import asyncapi
from apc_console.commands.config import config
from apc_console.commands.contract import app as contract
from apc_console.commands.dead_letter import app as dead_letter
from apc_console.commands.deploy import app as deploy
from apc_console.commands.effect import app as effect
from apc_console.commands.embedded_programs import app as embedded
from apc_console.commands.key import app as key
from apc_console.commands.log import app as log
from apc_console.commands.memory import app as memory
from apc_console.commands.migrate import migrate
from apc_console.commands.new import new
from apc_console.commands.packet import app as packet
from apc_console.commands.protocol import app as protocol
from apc_console.commands.run import chat, run, up, worker
from apc_console.commands.schema import app as schema
from apc_console.commands.serve import app as serve
from apc_console.commands.session import app as session
from apc_console.commands.tail import tail
from apc_console.commands.task import app as task
from apc_console.commands.topology import app as topology
from apc_console.commands.ui import ui
from apc_console.commands.user import app as user
from apc_console.doctor.examination import doctor
from apc_console.output.output import sentence_of, tell
from apc_console.output.terminal import echo
from apc_contracts.errors import ApcError
from apc_contracts.text import one_line

__all__ = ["app", "main"]

app = typer.Typer(
    name="apc",
    help="A message bus for swarms of agents: packets admitted by contract, written to an append-only log.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(new)
app.command()(up)
app.command()(run)
app.command()(worker)
app.command()(chat)
app.command()(tail)
app.command()(ui)
app.add_typer(packet, name="packet")
app.add_typer(log, name="log")
app.add_typer(protocol, name="protocol")
app.add_typer(arbitration, name="arbitration")
app.add_typer(approval, name="approval")
app.add_typer(contract, name="contract")
app.add_typer(schema, name="schema")
app.add_typer(dead_letter, name="dead-letter")
app.add_typer(agent, name="agent")
app.add_typer(key, name="key")
app.add_typer(session, name="session")
app.add_typer(task, name="task")
app.add_typer(effect, name="effect")
app.add_typer(memory, name="memory")
app.add_typer(topology, name="topology")
app.add_typer(serve, name="serve")
app.add_typer(deploy, name="deploy")
app.add_typer(user, name="user")
app.add_typer(embedded, name="embedded")
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
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    remarks = check_names(os.environ)
    if "APC_SUPERVISED" not in os.environ:  # the supervisor has told it already
        tell(remarks)


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
    except PermissionError as error:
        if error.filename is None or Path(error.filename).name != ".env":
            raise
        _fail(f"cannot look for .env in {os.getcwd()}: {error.strerror}; start it in a folder that you may read", 2)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        # The reader of a pipe left (`apc packet trace | head`): there is nobody to tell.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    if message:  # `apc` alone prints only its help
        echo(f"apc: {one_line(message)}", file=sys.stderr)
    sys.exit(code)

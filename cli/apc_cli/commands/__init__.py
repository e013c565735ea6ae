"""The `apc` command: its commands and groups by name, and the one place where an error becomes a line and an exit code.

A module of this folder is imported when its command is used: `apc worker` starts without the server's libraries.
Applications add their own groups.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from typer.core import TyperCommand

from apc_bus.settings.services import check_names
from apc_cli import __version__
from apc_cli.commands.applications import add_applications
from apc_cli.commands.group import Commands
from apc_cli.errors import OutputLost
from apc_cli.output.output import sentence_of, tell
from apc_cli.output.terminal import echo, give_up_output, guard_output
from apc_contracts.errors import ApcError, ExtraMissing
from apc_contracts.text import one_line

__all__ = ["COMMANDS", "app", "loaded", "main"]

COMMANDS = {
    "demo": (
        "commands.demo:demo",
        "Watch an incident room for 20 seconds: a refusal, an approval, a kill -9 without a doubled effect, a proof.",
    ),
    "new": (
        "commands.new:new",
        "Write a project: a team of two agents, its rules, tests, Makefile, Dockerfile, compose override and CI.",
    ),
    "up": (
        "commands.run:up",
        "Run everything until SIGTERM: in this process by default, with an embedded PostgreSQL and no broker.",
    ),
    "run": (
        "commands.run:run",
        "Run a team on one input and print its result as JSON: in this process, or over RabbitMQ with APC_AMQP_URL.",
    ),
    "worker": (
        "commands.run:worker",
        "Run an agent against the broker of APC_AMQP_URL until SIGTERM, which drains it.",
    ),
    "chat": ("commands.run:chat", "Talk to an agent; /help lists the commands."),
    "tail": (
        "commands.tail:tail",
        "Follow the log: packets with their verdicts, retries, dead letters, steps of sessions, and conflicts.",
    ),
    "ui": (
        "commands.run:ui",
        "Open the web console for the log of the data folder, or of APC_DATABASE_URL; it never migrates.",
    ),
    "asyncapi": (
        "commands.asyncapi:asyncapi",
        "Write the AsyncAPI 3.0 document: APC_SHARDS shards, and the registered agents when APC_DATABASE_URL is set.",
    ),
    "migrate": (
        "commands.migrate:migrate",
        "Migrate the database at APC_DATABASE_URL, and those of APC_DATABASES, to the schema of this release.",
    ),
    "config": (
        "commands.config:config",
        "Print every setting in force with its environment variable; secrets are hidden.",
    ),
    "doctor": (
        "doctor.examination:doctor",
        "Check broker, topology, database, guard, clocks and log; exit 1 when something is wrong.",
    ),
    "packet": ("commands.packet:app", "Validate, arbitrate, trace, retract and replay packets."),
    "log": ("commands.log:app", "Prove the log, and verify it."),
    "protocol": ("commands.protocol:app", "Effectiveness and decay of protocols."),
    "arbitration": ("commands.arbitration:app", "Live arbitrations of transfers and of candidates."),
    "approval": ("commands.approval:app", "Questions to people: list, show, approve, deny."),
    "contract": ("commands.contract:app", "Walk, draw, explain, check and register contracts."),
    "schema": ("commands.schema:app", "Register, list and show the schemas of typed content."),
    "dead-letter": ("commands.dead_letter:app", "List, show, requeue and discard dead letters."),
    "issue": ("commands.issue:app", "What goes wrong: refusals, failures, dead letters, failed verifications."),
    "agent": ("commands.agent:app", "Add, revoke, list and show agents."),
    "caller": ("commands.caller:app", "Add, revoke and list those who come in through a door of A2A."),
    "key": ("commands.key:app", "Make, show and register the keys with which agents sign."),
    "session": ("commands.session:app", "List, show, explain, start, follow, pause, resume and stop sessions."),
    "task": ("commands.task:app", "Durable tasks of agents."),
    "effect": ("commands.effect:app", "Effects that handlers make once (ctx.once)."),
    "memory": ("commands.memory:app", "Conversations and states that agents keep."),
    "shard": (
        "commands.topology:shards_app",
        "Shards: who holds each, where its log is, and moving one.",
    ),
    "topology": ("commands.topology:app", "Show, declare or export the broker's topology."),
    "serve": ("commands.serve:app", "Run a service."),
    "deploy": ("commands.deploy:app", "Prepare a deployment."),
    "user": ("commands.user:app", "Accounts of the web console (APC_WEB_USERS_FILE)."),
    "embedded": ("commands.migrate:app", "The embedded PostgreSQL of root."),
}
"""Command or group -> the module and name in `apc_cli` that it is, and its line in `apc --help`."""

app = Commands(
    name="apc",
    help="A message bus for swarms of agents: packets admitted by contract, written to an append-only log.",
    pretty_exceptions_enable=False,
)


class _Later(TyperCommand):
    """A command of the table, until it is used."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the command itself."""
        return loaded(str(self.name)).make_context(info_name, args, parent, **extra)


def loaded(name: str) -> Any:
    """Return a command of the table, or a group with its commands."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(import_module(f"apc_cli.{module}"), attribute)
    alone = Commands(help="")
    if isinstance(command, typer.Typer):
        alone.add_typer(command, name=name)
    else:
        alone.command(name)(command)
    return typer.main.get_group(alone).commands[name]


for _name, (_, _line) in COMMANDS.items():
    app.command(_name, cls=_Later, help=_line)(lambda: None)
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
    _open_closed_streams()
    guard_output()
    code = _run(arguments)
    try:
        sys.stdout.flush()
    except OutputLost as error:
        give_up_output()
        code = code or _failure(str(error), error.exit_code)
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    """Run a command, and say why it failed; return the exit code."""
    try:
        code = app(args=arguments, prog_name="apc", standalone_mode=False)
    except typer.TyperException as error:
        return _failure(error.format_message(), error.exit_code)
    except ApcError as error:
        return _failure(str(error), getattr(error, "exit_code", 2))
    except ModuleNotFoundError as error:
        if str(error.name).startswith("apc_"):
            raise
        return _failure(str(ExtraMissing(error)), 2)
    except ValidationError as error:
        return _failure(sentence_of(error), 2)
    except PermissionError as error:
        if error.filename is None or Path(error.filename).name != ".env":
            raise
        where = f"{os.getcwd()}: {error.strerror}"
        return _failure(f"cannot look for .env in {where}; start it in a folder that you may read", 2)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    return code if isinstance(code, int) else 0


def _open_closed_streams() -> None:
    """Open /dev/null for a standard stream that was closed at the start (`<&-`).

    A socket of the event loop would get its number, and libuv aborts the process when it closes one below 3.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            os.dup2(opened, number)  # a child process inherits it
            if opened != number:
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))


def _failure(message: str, code: int) -> int:
    if message:  # `apc` alone prints only its help
        echo(f"apc: {one_line(message)}", file=sys.stderr)
    return code

"""Commands of applications: each is an entry point in the group `apc.commands` that names a `typer.Typer`."""

import sys
from importlib.metadata import EntryPoint, entry_points

import typer

from apc_cli.output.terminal import echo
from apc_contracts.text import one_line

GROUP = "apc.commands"


def add_applications(app: typer.Typer) -> None:
    """Add the commands of every installed application to `app`, in the order of their names."""
    for entry_point in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        add_application(app, entry_point)


def add_application(app: typer.Typer, entry_point: EntryPoint) -> None:
    """Add the commands that `entry_point` names; say on stderr why they are missing when it cannot be loaded."""
    try:
        commands = entry_point.load()
    except Exception as error:  # whatever a foreign module raises: `apc` works without it
        reason = f"{type(error).__name__}: {error}"
    else:
        if isinstance(commands, typer.Typer):
            app.add_typer(commands, name=entry_point.name)
            return
        reason = f"it is no typer.Typer but {type(commands).__name__}"
    sentence = f"apc: no command `apc {entry_point.name}`: {entry_point.value} cannot be used: {reason}"
    echo(one_line(sentence), file=sys.stderr)

"""What groups of commands are made of: their Typer, and the options that several of them have."""

from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from apc_cli.system.running import run_quietly

After = Annotated[str | None, typer.Option(help="Continue after this cursor, which the previous page printed.")]
ContractFile = Annotated[Path | None, typer.Option("--contract", help="A contract file instead of the built-in one.")]

Options = ParamSpec("Options")
Command = TypeVar("Command", bound=Callable[..., Any])


class Commands(typer.Typer):
    """A group of commands: without the name of one it prints its help.

    A command may be a coroutine function. It is run to its end, and what it prints is all that is printed.
    """

    def __init__(self, *, help: str, **options: Any) -> None:
        super().__init__(help=help, no_args_is_help=True, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Command], Command]:
        """Add a function as a command, and return it as it is."""
        add = super().command(name, **options)

        def added(command: Command) -> Command:
            add(_to_its_end(command) if iscoroutinefunction(command) else command)
            return command

        return added


def _to_its_end(command: Callable[Options, Coroutine[Any, Any, None]]) -> Callable[Options, None]:
    @wraps(command)
    def run(*arguments: Options.args, **options: Options.kwargs) -> None:
        run_quietly(command(*arguments, **options))

    return run

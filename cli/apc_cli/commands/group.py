"""What groups of commands are made of: their Typer, and the options that several of them have."""

import re
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import wraps
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar
from uuid import UUID

import typer
from typer.core import TyperCommand, TyperGroup

from apc_cli.errors import InputUnusable
from apc_cli.output.safe_console import SafeConsole
from apc_cli.system.running import run_quietly
from apc_contracts.errors import ApcError

After = Annotated[str | None, typer.Option(help="Continue after this cursor, which the previous page printed.")]
ContractFile = Annotated[Path | None, typer.Option("--contract", help="A contract file instead of the built-in one.")]

Options = ParamSpec("Options")
Command = TypeVar("Command", bound=Callable[..., Any])


class _Help:
    """Help that is printed as everything else: without padding, and without styles where none are wanted."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help of a command."""
        from typer import rich_utils  # it takes a tenth of a second

        rich_utils.Console = SafeConsole  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)  # type: ignore[misc]


class _Group(_Help, TyperGroup):
    """A group of commands."""


class _Command(_Help, TyperCommand):
    """One command."""


class Commands(typer.Typer):
    """A group of commands: without the name of one it prints its help.

    A command may be a coroutine function. It is run to its end, and what it prints is all that is printed.
    """

    def __init__(self, *, help: str, **options: Any) -> None:
        super().__init__(help=help, no_args_is_help=True, cls=_Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Command], Command]:
        """Add a function as a command, and return it as it is."""
        add = super().command(name, **{"cls": _Command} | options)

        def added(command: Command) -> Command:
            add(_to_its_end(command) if iscoroutinefunction(command) else command)
            return command

        return added


def _to_its_end(command: Callable[Options, Coroutine[Any, Any, None]]) -> Callable[Options, None]:
    @wraps(command)
    def run(*arguments: Options.args, **options: Options.kwargs) -> None:
        run_quietly(command(*arguments, **options))

    return run


# Ids, of which lists print the end where the terminal is narrow.

_END = re.compile("…?([0-9a-fA-F-]{4,35})")
"""The end of an id, as lists print it; fewer characters are the end of too many."""


def whole_session_id(text: str) -> str:
    """Return a session's id; `text` is the id, or the end of one. Raises InputUnusable."""
    return _whole("session", text)


def whole_run_id(text: str) -> str:
    """Return a run's id; `text` is the id, or the end of one. Raises InputUnusable."""
    return _whole("run", text)


def whole_packet_id(text: str) -> str:
    """Return a packet's id; `text` is the id, or the end of one. Raises InputUnusable."""
    return _whole("packet", text)


def packet_uuid(text: str) -> UUID:
    """Return a packet's id; `text` is the id, or the end of one. Raises InputUnusable, ValueError."""
    return UUID(_whole("packet", text))


def _whole(kind: str, text: str) -> str:
    """Return the only id of its kind that ends so; another text as it is, which the command then does not find."""
    end = _END.fullmatch(text)
    if end is None:
        return text
    try:
        found = run_quietly(_ids_that_end(kind, end[1].lower()))
    except ApcError:  # the command says why, if it needs the log at all
        return text
    if len(found) > 1:
        listed = " and ".join(found[:_MOST]) + (" and others" if len(found) > _MOST else "")
        raise InputUnusable(f"{text} is the end of {listed}: give one whole")
    if not found and text.startswith("…"):
        raise InputUnusable(f"the log holds no {kind} whose id ends with {end[1]}")
    return found[0] if found else text


_MOST = 10


async def _ids_that_end(kind: str, end: str) -> list[str]:
    from apc_cli.connections import open_log  # late: many commands need no log
    from apc_log.queries.search import ids_that_end

    async with open_log() as pool:
        return await ids_that_end(pool, kind, end, limit=_MOST + 1)


# Times that people give at a terminal: how long ago, or when.

_UNITS = {"s": "seconds", "m": "minutes", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO = re.compile(r"(\d{1,6})\s*(s|m|min|h|d|w)")

Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only from this time on: 30m, 1h, 7d ago, or 2026-11-27T09:00Z."),
]


def time_since(text: str, option: str = "--since") -> datetime:
    """Return the time that a text names: how long ago (30m, 1h, 7d), or when; without a zone it is UTC.

    Raises InputUnusable.
    """
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago is not None:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        found = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError) as error:
        raise InputUnusable(f"{option} {text!r} is no time: write 30m, 1h or 7d, or 2026-11-27T09:00Z") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)

"""`apc caller`: those outside who come in through a door, in the registry and in the file of their tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from apc_a2a.access import CallersDocument, CallerTokens, check_caller_name, read_callers, with_token, write_callers
from apc_a2a.server import callers_file_of
from apc_bus.folders import locked
from apc_bus.settings import A2ASettings, BusSettings
from apc_cli.commands.group import Commands
from apc_cli.connections import open_bus, open_log
from apc_cli.errors import InputUnusable
from apc_cli.output.output import AsJson, print_rows
from apc_cli.output.terminal import echo
from apc_client.callers import add_caller, callers_in, revoke_caller
from apc_log.registry import read_registry

app = Commands(help="Add, revoke and list those who come in through a door of A2A.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The caller: 1 to 57 letters, digits, _ . or -.")]
Label = Annotated[str, typer.Option(help="Names the token, so that one can be replaced without the others.")]


@contextmanager
def _changing() -> Iterator[dict[str, CallerTokens]]:
    """Yield the callers of the file, and write them as they are then. Raises InputUnusable."""
    file = callers_file_of(A2ASettings(), BusSettings().data_dir)
    try:
        with locked(file):
            callers = dict(read_callers(file).callers)
            yield callers
            write_callers(file, CallersDocument(callers=callers))
    except OSError as error:
        raise InputUnusable(f"cannot write {file}: {error.strerror}") from error


def new_token(name: str, label: str) -> str:
    """Make a token for a caller and return it; its digest goes into the file. Raises InputUnusable."""
    with _changing() as callers:
        document, token = with_token(CallersDocument(callers=callers), name, label)
        callers |= document.callers
    return token


@app.command()
async def add(
    name: Name,
    via: Annotated[
        str | None, typer.Option(help="The broker user of the door through which they come; default our own.")
    ] = None,
    label: Label = "first",
    token: Annotated[bool, typer.Option(help="Make a token in this door's file and print it.")] = True,
) -> None:
    """Register a caller, and print a token: who sends it as `Authorization: Bearer TOKEN` acts in this name.

    A caller is a client with the right `operate`, which starts sessions (`client-NAME`), and a person of the role
    `caller`, whom handlers can ask. The token is shown once; the file has its digest alone.
    """
    check_caller_name(name)
    settings = BusSettings()
    async with open_log() as pool, open_bus(settings) as bus:
        await add_caller(bus, pool, settings.shards, name, via)
    if token:
        echo(new_token(name, label))


@app.command("token")
def make_token(name: Name, label: Label) -> None:
    """Make a further token for a caller, or another one in place of that with the label, and print it."""
    echo(new_token(name, label))


@app.command()
async def revoke(name: Name) -> None:
    """Revoke a caller and delete its tokens: nothing more of it is accepted. Its past stays in the log."""
    with _changing() as callers:
        callers.pop(name, None)
    settings = BusSettings()
    async with open_log() as pool, open_bus(settings) as bus:
        await revoke_caller(bus, pool, settings.shards, name)
    echo(f"caller {name} is revoked")


@app.command("list")
async def list_callers(as_json: AsJson = False) -> None:
    """List callers, the broker users of their doors, and the labels of their tokens in this door's file."""
    document = read_callers(callers_file_of(A2ASettings(), BusSettings().data_dir))
    async with open_log() as pool:
        known = callers_in(await read_registry(pool))
    rows: list[dict[str, Any]] = [
        {"name": name, "via": client.broker_user, "tokens": ", ".join(_labels(document, name))}
        for name, client in sorted(known.items())
    ]
    print_rows(rows, title="Callers", as_json=as_json, empty="there are no callers: `apc caller add NAME` makes one")


def _labels(document: CallersDocument, name: str) -> list[str]:
    return sorted(document.callers.get(name, CallerTokens()).tokens)

"""`apc user`: accounts of the web console, in the file APC_WEB_USERS_FILE."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from apc_console.output.output import AsJson
from apc_console.output.terminal import echo

app = typer.Typer(help="Accounts of the web console (APC_WEB_USERS_FILE).", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The account. Acts need a registered person of this name.")]


class RoleName(StrEnum):
    """The roles, as an option."""

    VIEWER = "viewer"
    READER = "reader"
    OPERATOR = "operator"


@app.command()
def add(
    name: Name,
    role: Annotated[RoleName, typer.Option(help="viewer: columns; reader: bodies and proofs too; operator: acts too.")],
    password: Annotated[
        bool, typer.Option(help="Ask for a password; without one the account has API tokens alone.")
    ] = True,
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Take the password from this file instead of asking.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave an account that is there as it is.")] = False,
) -> None:
    """Make an account, or change its role and password; a running server knows it at once."""
    from apc_console.commands.user.users import has_user, read_password, set_user

    if keep and has_user(name):
        echo(f"account {name} is there and stays as it is")
        return
    if password_file is not None:
        given: str | None = read_password(password_file)
    else:
        given = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True) if password else None
    set_user(name, role.value, given)
    echo(f"account {name} has the role {role.value}")


@app.command()
def token(
    name: Name,
    label: Annotated[str, typer.Option(help="What the token is for; the old one of this label ends.")] = "default",
) -> None:
    """Make an API token, and print it once: send it as Bearer."""
    from apc_console.commands.user.users import new_token

    made = new_token(name, label)
    echo(f"keep it: the file has only its hash; account {name}, label {label}", file=sys.stderr)
    echo(made)


@app.command()
def remove(name: Name) -> None:
    """Remove an account; its logins end at once, its streams within 30 s."""
    from apc_console.commands.user.users import remove_user

    remove_user(name)
    echo(f"account {name} is removed")


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """Print the accounts."""
    from apc_console.commands.user.users import user_rows
    from apc_console.output.output import print_rows

    print_rows(user_rows(), title="Accounts", as_json=as_json, empty="no accounts: `apc user add`")

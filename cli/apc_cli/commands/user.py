"""`apc user`: accounts of the web console, in the file APC_WEB_USERS_FILE, which is changed one step at a time."""

import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import typer

from apc_bus.folders import locked
from apc_bus.settings import WebSettings
from apc_cli.commands.group import Commands
from apc_cli.errors import InputUnusable
from apc_cli.output.output import AsJson, print_rows
from apc_cli.output.terminal import echo
from apc_web.access import AccountRole, UserRecord, UsersDocument, check_name, hash_password, read_users, write_users


def set_user(name: str, role: str, password: str | None) -> None:
    """Make or change an account; its tokens stay. Raises InputUnusable."""
    check_name(name)
    hashed = None if password is None else hash_password(password)
    with _changing() as users:
        tokens = users[name].tokens if name in users else {}
        users[name] = UserRecord(role=AccountRole(role), password=hashed, tokens=tokens)


def has_user(name: str) -> bool:
    """Return whether there is an account of this name. Raises InputUnusable."""
    return name in _read().users


def read_password(file: Path) -> str:
    """Return the password that a file holds, without the end of its line. Raises InputUnusable."""
    try:
        return file.read_text(encoding="utf-8").removesuffix("\n")
    except OSError as error:
        raise InputUnusable(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputUnusable(f"{file}: a password is text in UTF-8") from error


def new_token(name: str, label: str) -> str:
    """Make a token for an account and return it. Raises InputUnusable."""
    token = secrets.token_urlsafe(32)
    with _changing() as users:
        record = _known(users, name)
        tokens = {**record.tokens, label: sha256(token.encode()).hexdigest()}
        users[name] = UserRecord(role=record.role, password=record.password, tokens=tokens)
    return token


def remove_user(name: str) -> None:
    """Remove an account. Raises InputUnusable."""
    with _changing() as users:
        _known(users, name)
        del users[name]


def user_rows() -> list[dict[str, Any]]:
    """Return the accounts without their secrets. Raises InputUnusable."""
    document = _read()
    return [
        {"name": name, "role": user.role.value, "password": user.password is not None, "tokens": ", ".join(user.tokens)}
        for name, user in sorted(document.users.items())
    ]


def _file() -> Path:
    file = WebSettings().web_users_file
    if file is None:
        raise InputUnusable("set APC_WEB_USERS_FILE to the file of the accounts")
    return file


def _read() -> UsersDocument:
    file = _file()
    return read_users(file) if file.exists() else UsersDocument()


@contextmanager
def _changing() -> Iterator[dict[str, UserRecord]]:
    """Yield the accounts, and write them as they are then; no other command changes them meanwhile."""
    file = _file()
    try:
        with locked(file):
            users = dict(_read().users)
            yield users
            write_users(file, UsersDocument(users=users))
    except OSError as error:
        raise InputUnusable(f"cannot write {file}: {error.strerror}") from error


def _known(users: Mapping[str, UserRecord], name: str) -> UserRecord:
    record = users.get(name)
    if record is None:
        raise InputUnusable(f"there is no account {name!r}: `apc user list` shows them")
    return record


app = Commands(help="Accounts of the web console (APC_WEB_USERS_FILE).")

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
    made = new_token(name, label)
    echo(f"keep it: the file has only its hash; account {name}, label {label}", file=sys.stderr)
    echo(made)


@app.command()
def remove(name: Name) -> None:
    """Remove an account; its logins end at once, its streams within 30 s."""
    remove_user(name)
    echo(f"account {name} is removed")


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """Print the accounts."""
    empty = "no accounts: `apc user add`"
    print_rows(user_rows(), title="Accounts", as_json=as_json, empty=empty, weight=("name",))

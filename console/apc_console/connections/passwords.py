"""Passwords of broker users: from the environment, from a private file, or generated and kept there."""

import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

import orjson

from apc_bus.folders import make_private_folder
from apc_bus.settings import BusSettings, ConsoleSettings
from apc_console.errors import InputUnusable

RANDOM_BYTES = 32


def given_passwords() -> dict[str, str]:
    """Return user -> password of APC_BROKER_PASSWORDS. Raises InputUnusable."""
    given = ConsoleSettings().broker_passwords
    return {} if given is None else _parse(given.get_secret_value(), "APC_BROKER_PASSWORDS")


def default_file() -> Path:
    """Return the password file: APC_BROKER_PASSWORDS_FILE, else `<data_dir>/broker-passwords.json`."""
    return ConsoleSettings().broker_passwords_file or BusSettings().data_dir / "broker-passwords.json"


def known_passwords(file: Path) -> dict[str, str]:
    """Return user -> password of the environment and of the file; the environment takes precedence.

    Raises:
        InputUnusable: one of them is no JSON object of texts, or others than its owner may read the file.
    """
    return _read(file) | given_passwords()


def complete_passwords(users: Iterable[str], file: Path) -> tuple[dict[str, str], list[str]]:
    """Return the passwords of all these users, and the users whose passwords were generated now.

    New passwords are written into `file` (mode 0600).

    Raises:
        InputUnusable: as `known_passwords`, or the file cannot be written.
    """
    known = known_passwords(file)
    missing = [user for user in users if user not in known]
    if missing:
        made = {user: secrets.token_urlsafe(RANDOM_BYTES) for user in missing}
        _write(file, _read(file) | made)
        known |= made
    return known, missing


def forget_password(user: str, file: Path) -> None:
    """Remove a user from the file, if it is there. Raises InputUnusable."""
    kept = _read(file)
    if kept.pop(user, None) is not None:
        _write(file, kept)


def _read(file: Path) -> dict[str, str]:
    try:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise InputUnusable(f"{file} holds passwords and others may read it: chmod 600 {file}")
        text = file.read_text()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputUnusable(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputUnusable(f"cannot read {file}: {error}") from error
    return _parse(text, str(file))


def _parse(text: str, where: str) -> dict[str, str]:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InputUnusable(f"{where} is no JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(value, str) and value for value in found.values()):
        raise InputUnusable(f'{where} must be a JSON object of broker users and passwords: {{"orchestrator": "…"}}')
    return found


def _write(file: Path, passwords: dict[str, str]) -> None:
    """Replace the file atomically."""
    new = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    try:
        make_private_folder(file.parent)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(orjson.dumps(passwords, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")
        new.replace(file)
    except OSError as error:
        raise InputUnusable(f"cannot write {file}: {error.strerror}") from error

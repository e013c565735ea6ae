"""Secrets of compose files: each file is written from its template, with random passwords, or is a certificate."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from apc_bus.folders import is_open_to_others, make_private_folder
from apc_console.commands.deploy.certificates import make_certificate
from apc_console.connections.passwords import complete_passwords
from apc_console.errors import InputUnusable

TEMPLATE = "x-content"
"""The key of a compose file's secret that says what its file holds; `{user}` stands for a password."""
CERTIFICATE, KEY_OF = "x-certificate", "x-key-of"
"""Keys of two secrets that belong together: the names of a certificate, and the certificate whose private key it is."""
_USER = re.compile(r"\{([A-Za-z][\w.-]*)\}")
_FIT_FOR_URLS = re.compile(r"[\w.~-]+", re.ASCII)
_MODE = 0o444
"""Containers run as users other than the one that starts them; the folder itself is closed (mode 0700)."""


@dataclass(frozen=True)
class ComposeSecret:
    """A secret of a compose file: the path of its file, and its template if it has one."""

    name: str
    file: Path
    template: str | None
    certified: tuple[str, ...] = ()
    """The names for which it is a certificate."""
    key_of: str | None = None
    """The secret with the certificate whose private key it is."""


@dataclass
class WrittenSecrets:
    """What `write_secrets` did with each secret."""

    folder: Path
    passwords: Path
    made: list[Path] = field(default_factory=list)
    kept: int = 0
    differing: list[Path] = field(default_factory=list)
    missing: list[Path] = field(default_factory=list)
    certificates: list[Path] = field(default_factory=list)
    """Those that were made now."""


def write_secrets(compose_files: Sequence[Path]) -> WrittenSecrets:
    """Write each secret of these compose files that has a template, or is a certificate or its key, and no file yet.

    Passwords are generated once and kept in `passwords.json` beside the secrets (mode 0600), so that a later call with
    one more compose file adds what is missing and changes nothing else.

    Raises:
        InputUnusable: a compose file or the folder cannot be used; the message names file, place and remedy.
    """
    found = [secret for file in compose_files for secret in read_secrets(file)]
    if not found:
        names = ", ".join(map(str, compose_files))
        raise InputUnusable(f"{names} has no section `secrets`: there is nothing to write")
    folder = _common_folder(found)
    _make_folder(folder)
    written = WrittenSecrets(folder, folder / "passwords.json")
    users = sorted({user for secret in found for user in _USER.findall(secret.template or "")})
    passwords, _ = complete_passwords(users, written.passwords)
    for user in users:
        if not _FIT_FOR_URLS.fullmatch(passwords[user]):
            raise InputUnusable(f"the password of {user} must be letters, digits, - . _ or ~: it goes into URLs")
    keys = {secret.key_of: secret for secret in found if secret.key_of is not None}
    for secret in found:
        if secret.certified:
            _write_certificate(secret, keys[secret.name], written)
        elif secret.key_of is None:
            _write(secret, passwords, written)
    return written


def read_secrets(compose_file: Path) -> list[ComposeSecret]:
    """Return the secrets that a compose file declares with a file.

    Raises:
        InputUnusable: the file cannot be read, or is no compose file.
    """
    try:
        content = yaml.safe_load(compose_file.read_text())
    except OSError as error:
        raise InputUnusable(f"cannot read {compose_file}: {error.strerror}; name the file with --compose") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputUnusable(f"{compose_file} is no YAML: {' '.join(str(error).split())}") from error
    declared = content.get("secrets") or {} if isinstance(content, dict) else None
    if not isinstance(declared, dict):
        raise InputUnusable(f"{compose_file}: the section `secrets` must be a mapping of names")
    found = [
        _secret_of(compose_file, str(name), given)
        for name, given in declared.items()
        if not (isinstance(given, dict) and given.get("external"))
    ]
    if {one.name for one in found if one.certified} != {one.key_of for one in found if one.key_of is not None}:
        raise InputUnusable(f"{compose_file}: each secret with {CERTIFICATE} needs one with {KEY_OF}: its name")
    return found


def _secret_of(compose_file: Path, name: str, given: Any) -> ComposeSecret:
    file = given.get("file") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(file, str) or not file:
        raise InputUnusable(f"{compose_file}: secrets.{name}.file must be the path of a file")
    template, certified, key_of = given.get(TEMPLATE), given.get(CERTIFICATE, []), given.get(KEY_OF)
    if template is not None and not isinstance(template, str):
        raise InputUnusable(f"{compose_file}: secrets.{name}.{TEMPLATE} must be a text (put it in quotes)")
    if not isinstance(certified, list) or not all(isinstance(one, str) and one for one in certified):
        raise InputUnusable(f"{compose_file}: secrets.{name}.{CERTIFICATE} must be a list of host names")
    path = Path(os.path.normpath(compose_file.parent / file))
    return ComposeSecret(name, path, template, tuple(certified), None if key_of is None else str(key_of))


def _common_folder(found: Sequence[ComposeSecret]) -> Path:
    folders = sorted({secret.file.parent for secret in found})
    if len(folders) != 1:
        names = ", ".join(map(str, folders)) or "none"
        raise InputUnusable(f"all secrets must stand in one folder, for its owner alone (found {names})")
    return folders[0]


def _make_folder(folder: Path) -> None:
    try:
        make_private_folder(folder)
        is_open = is_open_to_others(folder)
    except OSError as error:
        raise InputUnusable(f"cannot make {folder}: {error.strerror}") from error
    if is_open:
        raise InputUnusable(f"{folder} holds secrets and others may enter it: chmod 700 {folder}")


def _write(secret: ComposeSecret, passwords: dict[str, str], written: WrittenSecrets) -> None:
    if secret.template is None:
        if not secret.file.exists():
            written.missing.append(secret.file)
        return
    content = _USER.sub(lambda match: passwords[match[1]], secret.template).encode()
    try:
        if _create(secret.file, content):
            written.made.append(secret.file)
            return
        written.kept += 1
        if secret.file.read_bytes() != content:
            written.differing.append(secret.file)
    except OSError as error:
        raise InputUnusable(f"cannot write {secret.file}: {error.strerror}") from error


def _write_certificate(secret: ComposeSecret, key: ComposeSecret, written: WrittenSecrets) -> None:
    """Make both files, or neither: a certificate of the operator's own keeps its key."""
    files = (secret.file, key.file)
    there = [file for file in files if os.path.lexists(file)]
    if there:
        written.kept += len(there)
        written.missing += [file for file in files if file not in there]
        return
    pair = make_certificate(secret.certified)
    try:
        for file, content in zip(files, (pair.certificate, pair.key), strict=True):
            _create(file, content)
            written.made.append(file)
    except OSError as error:
        raise InputUnusable(f"cannot write {secret.file}: {error.strerror}") from error
    written.certificates.append(secret.file)


def _create(file: Path, content: bytes) -> bool:
    """Create a complete file; return False when it exists already, also as a link."""
    new = file.with_name(f".{file.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
            os.fchmod(opened.fileno(), _MODE)
        os.link(new, file, follow_symlinks=False)  # unlike a rename, this never replaces an existing file
    except FileExistsError:
        return False
    finally:
        new.unlink(missing_ok=True)
    return True

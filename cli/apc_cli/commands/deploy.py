"""`apc deploy`: the files, secrets and certificates of a deployment."""

# A certificate for a server that has none from an authority: signed with its own key.

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from apc_bus.folders import is_open_to_others, make_private_folder
from apc_cli.commands.agent_logins import complete_passwords
from apc_cli.commands.group import Commands
from apc_cli.errors import InputUnusable
from apc_cli.output.terminal import echo
from apc_contracts.text import numbered

VALID = timedelta(days=825)
"""Browsers take no longer time from certificates that people add themselves."""
_CLOCKS_DIFFER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes


def make_certificate(names: Sequence[str]) -> CertificatePair:
    """Return a new certificate for these host names and addresses, with a new key (P-256, which all browsers take).

    Raises:
        InputUnusable: a name is neither a host name nor an address.
    """
    key, now = generate_private_key(SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "apc-bus")])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName(list(map(_name, names))), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return CertificatePair(made.public_bytes(Encoding.PEM), private)


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError as error:
        raise InputUnusable(f"{text!r} is no host name that a certificate can have") from error


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate as browsers show it: AB:CD:…. Raises InputUnusable: it is no certificate."""
    try:
        digest = x509.load_pem_x509_certificate(certificate).fingerprint(SHA256())
    except ValueError as error:
        raise InputUnusable(f"it is no certificate in PEM: {error}") from error
    return digest.hex(":").upper()


# The compose file of the bus and what it mounts: an installed package carries them.

COMPOSE, OVERRIDE = Path("docker-compose.yml"), Path("docker-compose.override.yml")
FILES = (
    COMPOSE,
    Path("deploy/agent.yml"),
    Path("deploy/postgres-users.sh"),
    Path("deploy/rabbitmq.conf"),
    Path("deploy/rabbitmq-advanced.config"),
    Path("deploy/rabbitmq-management.conf"),
)
"""What a project needs beside its own override; the wheel has them (pyproject.toml)."""


def files_of_folder(folder: Path) -> list[Path]:
    """Return the compose files that `docker compose` reads in a folder without being told."""
    return [folder / name for name in (COMPOSE, OVERRIDE) if (folder / name).exists() or name == COMPOSE]


def write_files(folder: Path) -> list[Path]:
    """Write the compose file and what it mounts, unless the folder has a compose file; return what was written.

    Raises:
        InputUnusable: the folder cannot be written.
    """
    if os.path.lexists(folder / COMPOSE):
        return []
    written = []
    for name in reversed(FILES):  # the compose file last: a call that was cut off goes on
        target = folder / name
        if os.path.lexists(target):
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as opened:
                opened.write((_source() / name).read_bytes())
                # Users of containers read it.
                os.fchmod(opened.fileno(), 0o755 if target.suffix == ".sh" else 0o644)
        except OSError as error:
            raise InputUnusable(f"cannot write {target}: {error.strerror}") from error
        written.append(target)
    return written


def _source() -> Path:
    packaged = Path(str(files("apc_cli") / "deployment"))
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3]


# Secrets of compose files: each file is written from its template, with random passwords, or is a certificate.

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
    secrets = [secret for file in compose_files for secret in read_secrets(file)]
    if not secrets:
        names = ", ".join(map(str, compose_files))
        raise InputUnusable(f"{names} has no section `secrets`: there is nothing to write")
    folder = _common_folder(secrets)
    _make_folder(folder)
    written = WrittenSecrets(folder, folder / "passwords.json")
    users = sorted({user for secret in secrets for user in _USER.findall(secret.template or "")})
    passwords, _ = complete_passwords(users, written.passwords)
    for user in users:
        if not _FIT_FOR_URLS.fullmatch(passwords[user]):
            raise InputUnusable(f"the password of {user} must be letters, digits, - . _ or ~: it goes into URLs")
    keys = {secret.key_of: secret for secret in secrets if secret.key_of is not None}
    for secret in secrets:
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
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputUnusable(f"{compose_file} is no YAML: {' '.join(str(error).split())}") from error
    declared = content.get("secrets") or {} if isinstance(content, dict) else None
    if not isinstance(declared, dict):
        raise InputUnusable(f"{compose_file}: the section `secrets` must be a mapping of names")
    secrets = [
        _secret_of(compose_file, str(name), given)
        for name, given in declared.items()
        if not (isinstance(given, dict) and given.get("external"))
    ]
    if {one.name for one in secrets if one.certified} != {one.key_of for one in secrets if one.key_of is not None}:
        raise InputUnusable(f"{compose_file}: each secret with {CERTIFICATE} needs one with {KEY_OF}: its name")
    return secrets


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


def _common_folder(secrets: Sequence[ComposeSecret]) -> Path:
    folders = sorted({secret.file.parent for secret in secrets})
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


# `apc deploy`: prepare a deployment.

app = Commands(help="Prepare a deployment.")


@app.callback()
def _deploy() -> None:
    """Prepare a deployment."""


@app.command()
def init(
    compose: Annotated[
        list[Path] | None,
        typer.Option(
            "--compose",
            metavar="FILE",
            help="A compose file with secrets; repeat it. Default docker-compose.yml and docker-compose.override.yml.",
        ),
    ] = None,
) -> None:
    """Write the secrets that compose files name: random passwords and certificates. Keeps every file that exists.

    A folder without docker-compose.yml gets it first, with the files that it mounts.
    """
    for file in [] if compose else write_files(Path()):
        echo(f"wrote {file}")
    written = write_secrets(compose or files_of_folder(Path()))
    for file in written.differing:
        echo(f"kept {file}: it differs from what the compose file says; remove it to write it again", file=sys.stderr)
    for file in written.missing:
        echo(
            f"missing {file}: the compose file does not say what it holds (x-content), so write it yourself",
            file=sys.stderr,
        )
    for file in written.certificates:
        echo(f"{file}: a browser warns of this certificate until you trust it; its SHA-256 is")
        echo(f"  {fingerprint(file.read_bytes())}")
    echo(
        f"{written.folder}: wrote {numbered(len(written.made), 'secret')}, kept {written.kept}; "
        f"passwords are in {written.passwords}"
    )
    echo("next: docker compose up --build --detach --wait")
    echo("then: docker compose logs --follow orchestrator persister")

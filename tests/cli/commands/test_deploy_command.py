"""`apc deploy init`: secrets of compose files, written once."""

import json
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner, Result

from apc_cli.commands import app
from apc_cli.commands.deploy import FILES, OVERRIDE, files_of_folder, fingerprint, read_secrets, write_secrets
from apc_cli.errors import InputUnusable

BASE = """
secrets:
  url: {file: ./secrets/url, x-content: "amqp://{planner}@rabbitmq/"}
  users: {file: ./secrets/users, x-content: '{"planner": "{planner}", "critic": "{critic}"}'}
"""
MORE = 'secrets: {other: {file: ./secrets/other, x-content: "{other}-{planner}"}}'

OWN = ("passwords.json", ".passwords.json.lock")
"""What is there beside the secrets."""


@pytest.fixture
def compose(tmp_path: Path) -> Path:
    file = tmp_path / "docker-compose.yml"
    file.write_text(BASE)
    return file


def init(*files: Path) -> Result:
    return CliRunner().invoke(app, ["deploy", "init", *(part for file in files for part in ("--compose", str(file)))])


def test_each_user_has_one_random_password(compose: Path) -> None:
    written = write_secrets([compose])

    passwords = json.loads(written.passwords.read_text())
    assert set(passwords) == {"planner", "critic"} and min(map(len, passwords.values())) >= 40
    assert (written.folder / "url").read_text() == f"amqp://{passwords['planner']}@rabbitmq/"
    assert json.loads((written.folder / "users").read_text()) == passwords
    assert stat.S_IMODE(written.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(written.passwords.stat().st_mode) == 0o600
    assert stat.S_IMODE((written.folder / "url").stat().st_mode) == 0o444
    files = {path.name for path in written.folder.iterdir()}
    assert files == {".passwords.json.lock", "passwords.json", "url", "users"}


def test_a_second_call_adds_what_is_missing_and_changes_nothing(compose: Path, tmp_path: Path) -> None:
    first = write_secrets([compose])
    before = {path: path.read_bytes() for path in (first.folder / "url", first.folder / "users")}
    more = tmp_path / "more.yml"
    more.write_text(MORE)

    second = write_secrets([compose, more])

    assert {path: path.read_bytes() for path in before} == before
    passwords = json.loads(second.passwords.read_text())
    assert (second.folder / "other").read_text() == f"{passwords['other']}-{passwords['planner']}"
    assert (second.kept, second.made, second.differing) == (2, [second.folder / "other"], [])


def test_a_file_that_says_something_else_is_kept_and_named(compose: Path, tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir(0o700)
    (folder / "url").write_text("amqp://mine@elsewhere/")

    shown = init(compose)

    assert shown.exit_code == 0
    assert (folder / "url").read_text() == "amqp://mine@elsewhere/"
    assert f"kept {folder / 'url'}: it differs" in shown.output and "wrote 1 secret, kept 1" in shown.output


def test_a_secret_without_a_template_is_left_to_the_operator(compose: Path) -> None:
    compose.write_text(f"{BASE}  own: {{file: ./secrets/own}}\n  far: {{external: true}}\n")

    shown = init(compose)

    assert shown.exit_code == 0 and "missing" in shown.output and "own" in shown.output


CERTIFIED = """
secrets:
  cert: {file: ./secrets/cert, x-certificate: [localhost, 127.0.0.1]}
  key: {file: ./secrets/key, x-key-of: cert}
"""


def test_a_certificate_is_made_with_its_key_and_its_fingerprint_is_told(compose: Path, tmp_path: Path) -> None:
    compose.write_text(CERTIFIED)

    shown = init(compose)

    folder = tmp_path / "secrets"
    made = (folder / "cert").read_bytes()
    assert shown.exit_code == 0 and fingerprint(made) in shown.output
    names = x509.load_pem_x509_certificate(made).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["127.0.0.1"]
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "cert", folder / "key")  # they belong together
    again = init(compose)
    assert "kept 2" in again.output and (folder / "cert").read_bytes() == made


def test_a_certificate_of_the_operator_is_never_given_another_key(compose: Path, tmp_path: Path) -> None:
    compose.write_text(CERTIFIED)
    (tmp_path / "secrets").mkdir(0o700)
    (tmp_path / "secrets/cert").write_text("mine")

    shown = init(compose)

    assert f"missing {tmp_path / 'secrets/key'}" in shown.output and not (tmp_path / "secrets/key").exists()


MISTAKES: dict[str, tuple[bytes | None, str]] = {
    "no file": (None, "cannot read"),
    "no YAML": (b"secrets: {", "is no YAML"),
    "no text": (b"\xff\xfe\x00", "is no YAML"),
    "no date": (b"secrets: 2020-13-45", "is no YAML"),
    "too deep": (b"[" * 5_000, "is no YAML"),
    "a list": (b"[]", "must be a mapping"),
    "secrets as a list": (b"secrets: [a]", "must be a mapping"),
    "no secrets": (b"services: {}", "no section `secrets`"),
    "no path": (b"secrets: {a: {x-content: b}}", "secrets.a.file"),
    "a number": (b"secrets: {a: {file: ./s/a, x-content: 7}}", "secrets.a.x-content"),
    "a certificate without a key": (b"secrets: {a: {file: ./s/a, x-certificate: [b]}}", "x-key-of"),
    "no names": (b"secrets: {a: {file: ./s/a, x-certificate: b}}", "list of host names"),
    "no host name": (
        "secrets: {a: {file: ./s/a, x-certificate: [ü]}, b: {file: ./s/b, x-key-of: a}}".encode(),
        "is no host name",
    ),
    "two folders": (b"secrets: {a: {file: ./s/a}, b: {file: ./t/b}}", "one folder"),
    "a file as folder": (b"secrets: {a: {file: ./docker-compose.yml/a, x-content: b}}", "cannot"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_compose_file_that_cannot_be_used_is_refused_by_place(compose: Path, mistake: str) -> None:
    content, told = MISTAKES[mistake]
    compose.unlink() if content is None else compose.write_bytes(content)

    with pytest.raises(InputUnusable, match=told):
        write_secrets([compose])


def test_a_password_that_no_url_can_carry_is_refused(compose: Path) -> None:
    write_secrets([compose]).passwords.write_text('{"planner": "a@b/c", "critic": "fine"}')

    with pytest.raises(InputUnusable, match="password of planner must be letters"):
        write_secrets([compose])


def test_an_empty_folder_gets_the_compose_file_and_all_that_it_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    shown = CliRunner().invoke(app, ["deploy", "init"])

    assert shown.exit_code == 0, shown.output
    assert sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()) == sorted(
        [*map(str, FILES), *(f"deploy/secrets/{name}" for name in (*declared(tmp_path), *OWN))]
    )
    assert stat.S_IMODE((tmp_path / "deploy/rabbitmq.conf").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "deploy/postgres-users.sh").stat().st_mode) == 0o755
    again = CliRunner().invoke(app, ["deploy", "init"])
    assert again.output.splitlines()[0].endswith("passwords.json") and "wrote 0 secrets" in again.output


def declared(folder: Path) -> set[str]:
    return {secret.name for file in files_of_folder(folder) for secret in read_secrets(file)}


def test_the_override_of_a_folder_is_read_as_docker_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / OVERRIDE).write_text(
        "secrets: {planner_url: {file: ./deploy/secrets/planner_url, x-content: '{agent.planner}'}}"
    )

    assert CliRunner().invoke(app, ["deploy", "init"]).exit_code == 0

    passwords = json.loads((tmp_path / "deploy/secrets/passwords.json").read_text())
    assert (tmp_path / "deploy/secrets/planner_url").read_text() == passwords["agent.planner"]
    assert {"operator", "agent.planner"} < passwords.keys()


def test_a_compose_file_of_another_project_is_left_alone(compose: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(compose.parent)

    assert CliRunner().invoke(app, ["deploy", "init"]).exit_code == 0

    assert compose.read_text() == BASE
    assert not (compose.parent / "deploy").exists()

"""`apc deploy init`: secrets of compose files, written once."""

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from apc_console.commands import app
from apc_console.commands.deploy.compose_secrets import write_secrets
from apc_console.errors import InputUnusable

BASE = """
secrets:
  url: {file: ./secrets/url, x-content: "amqp://{planner}@rabbitmq/"}
  users: {file: ./secrets/users, x-content: '{"planner": "{planner}", "critic": "{critic}"}'}
"""
MORE = 'secrets: {other: {file: ./secrets/other, x-content: "{other}-{planner}"}}'


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
    assert sorted(path.name for path in written.folder.iterdir()) == ["passwords.json", "url", "users"]


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
    assert f"kept {folder / 'url'}: it differs" in shown.output and "wrote 1 secrets, kept 1" in shown.output


def test_a_secret_without_a_template_is_left_to_the_operator(compose: Path) -> None:
    compose.write_text(f"{BASE}  own: {{file: ./secrets/own}}\n  far: {{external: true}}\n")

    shown = init(compose)

    assert shown.exit_code == 0 and "missing" in shown.output and "own" in shown.output


MISTAKES: dict[str, tuple[bytes | None, str]] = {
    "no file": (None, "cannot read"),
    "no YAML": (b"secrets: {", "is no YAML"),
    "no text": (b"\xff\xfe\x00", "is no YAML"),
    "a list": (b"[]", "no section `secrets`"),
    "no secrets": (b"services: {}", "no section `secrets`"),
    "no path": (b"secrets: {a: {x-content: b}}", "secrets.a.file"),
    "a number": (b"secrets: {a: {file: ./s/a, x-content: 7}}", "secrets.a.x-content"),
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

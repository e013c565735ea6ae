"""Passwords of broker users: made once, kept for their owner alone, never overwritten."""

import json
import stat
from pathlib import Path

import pytest

from apc_cli.commands.agent_logins import complete_passwords, forget_password, known_passwords
from apc_cli.errors import InputUnusable


def test_what_is_missing_is_made_once(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "passwords.json"
    first, made = complete_passwords(["a", "b"], file)
    assert made == ["a", "b"] and len(set(first.values())) == 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again, made = complete_passwords(["a", "b", "c"], file)
    assert made == ["c"] and again.items() >= first.items()
    assert known_passwords(file) == again == json.loads(file.read_text())
    forget_password("b", file)
    assert set(known_passwords(file)) == {"a", "c"}
    assert {path.name for path in file.parent.iterdir()} == {"passwords.json", ".passwords.json.lock"}


def test_the_environment_counts_and_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_BROKER_PASSWORDS", '{"a": "given"}')
    file = tmp_path / "passwords.json"
    assert complete_passwords(["a"], file) == ({"a": "given"}, [])
    assert not file.exists()
    assert complete_passwords(["a", "b"], file)[0]["a"] == "given"
    assert set(json.loads(file.read_text())) == {"b"}


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"a": ""}'])
def test_a_file_that_holds_no_passwords(tmp_path: Path, text: str) -> None:
    file = tmp_path / "passwords.json"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(InputUnusable, match=r"passwords\.json"):
        complete_passwords(["a"], file)
    assert file.read_text() == text


def test_a_file_that_others_may_read(tmp_path: Path) -> None:
    file = tmp_path / "passwords.json"
    file.write_text("{}")
    file.chmod(0o640)
    with pytest.raises(InputUnusable, match="chmod 600"):
        known_passwords(file)


def test_a_variable_that_holds_no_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_BROKER_PASSWORDS", "secret")
    with pytest.raises(InputUnusable, match="APC_BROKER_PASSWORDS is no JSON") as refused:
        known_passwords(tmp_path / "none")
    assert "secret" not in str(refused.value)

"""What an operator mistypes is named: where it stands, what is wrong, what to do."""

import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import ValidationError
from pydantic_settings.sources.providers import dotenv
from tests.support.apc_command import ApcCommand

from apc_bus.settings import BusSettings
from apc_cli.commands import main
from apc_cli.commands.agent import AgentForm, add_agent
from apc_cli.commands.config import settings_in_force
from apc_cli.commands.log_verification import read_checkpoint_files
from apc_cli.connections import open_log
from apc_cli.errors import InputUnusable
from apc_cli.output.output import sentence_of
from apc_cli.output.terminal import ask_whether
from apc_contracts import load_contract
from apc_contracts.errors import ContractInvalid
from apc_log.errors import BundleUnreadable
from apc_log.offline_verifier import BUNDLE, COLUMNS
from apc_log.offline_verifier import main as check
from apc_log.queries import BundleRecords


def test_a_contract_is_named_by_its_file(tmp_path: Path) -> None:
    for text in (None, "{", '{"name": 7}'):
        file = tmp_path / "mine.json"
        if text is not None:
            file.write_text(text)
        with pytest.raises(ContractInvalid) as refused:
            load_contract(file)
        assert str(refused.value).count(str(file)) == 1


@pytest.mark.parametrize("key", ["garbage", "a+b+c", "name+00000000+AAAA"])
def test_a_key_that_is_none_is_an_unusable_option(tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    file = tmp_path / "proof.json"
    file.write_text("{}")
    assert check([str(file), "--key", key]) == 2
    said = capsys.readouterr().err
    assert said.startswith("--key ") and "Errno" not in said and "NOT PROVEN" not in said
    assert key != "garbage" or "neither a public key as `apc log key` prints it nor a file of them" in said


def test_a_file_without_a_key_is_not_taken_for_no_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "keys").write_text("# nothing\n")
    assert check([str(tmp_path / "keys"), "--key", str(tmp_path / "keys")]) == 2
    assert "holds no key" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [5, None, [], True, "x"])
def test_what_is_no_bundle_is_not_replayed(wrong: Any) -> None:
    head = {"format": BUNDLE, "run_id": "run-1", "contracts": []}
    columns = {"session_id": "s-1", "cause_packet_id": wrong}
    entry = ["coordination", 1, 0, 1, *(columns.get(name) for name in COLUMNS["coordination", 1])]
    for lines in ([head | {"contracts": [[wrong]]}], [head, {"entry": json.dumps(entry)}]):
        with pytest.raises(BundleUnreadable, match="this is no bundle"):
            BundleRecords([json.dumps(line).encode() for line in lines])


@pytest.mark.parametrize(
    ("line", "says"),
    [('{"entry": "[1\n', "line 2: not JSON: "), ('{"entry": "[1', "line 2: the file was cut off here")],
)
def test_a_line_of_a_bundle_is_named_by_its_number_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, says: str
) -> None:
    head: dict[str, Any] = {"format": "apc-log-bundle", "version": 3, "run_id": "r", "checkpoints": [], "contracts": []}
    file = tmp_path / "bundle"
    file.write_text(f"{json.dumps(head)}\n{line}")
    assert check([str(file), "--no-key"]) == 1
    assert says in capsys.readouterr().err


def test_a_file_that_is_missing_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "none")
    assert check([missing, "--no-key"]) == 2
    assert capsys.readouterr().err == f"cannot read {missing}: No such file or directory\n"
    with pytest.raises(InputUnusable) as refused:
        read_checkpoint_files([tmp_path / "none"], None)  # type: ignore[arg-type]
    assert str(refused.value) == f"cannot read {missing}: No such file or directory"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["desk:team", "--key", "nn"], "--key is of a team, which needs its input: give --input FILE"),
        (["desk:team"], "there is no file desk:team; a team needs its input: give --input FILE"),
        (["desk:team", "--input", "input.json", "--key", ""], "the key of a start is empty: "),
    ],
)
def test_what_a_start_lacks_is_named(apc: ApcCommand, given: list[str], says: str) -> None:
    refused = apc("session", "start", *given)
    assert (refused.returncode, refused.stderr[: len(says) + 5]) == (2, f"apc: {says}")


async def test_a_folder_without_a_log_is_named_in_full_with_the_ways_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("APC_DATA_DIR", "APC_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputUnusable) as refused:
        async with open_log():
            pass
    assert f"no log in {tmp_path}/.apc: " in str(refused.value)
    assert "APC_DATA_DIR" in str(refused.value)
    assert not (tmp_path / ".apc").exists()


def test_a_question_that_nobody_can_answer_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(InputUnusable, match="--yes"):
        ask_whether("Go on?")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    with pytest.raises(typer.Abort):
        ask_whether("Go on?")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    ask_whether("Go on?")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("APC_DATABASE_URL", "gopher://x", "must begin with postgresql:// or postgres:// (got gopher://)"),
        ("APC_DATABASE_URL", "postgresql://u:p@h:5432,[::1]:99999/d", "must have ports from 1 to 65535 (got 99999)"),
        ("APC_DATABASE_URL", "postgresql:///d?host=h&port=99999", "must have ports from 1 to 65535 (got 99999)"),
        ("APC_DATA_DIR", "/dev/null", "must be a folder (/dev/null is none)"),
        ("APC_DATA_DIR", f"{__file__}/data", f"must be a folder ({__file__} is none)"),
        (
            "APC_ARTIFACTS_URL",
            "gopher://x",
            "must begin with file:// or s3:// or memory://, or be a folder (got gopher://)",
        ),
        (
            "APC_CHECKPOINTS_URL",
            "gopher://x",
            "must begin with file:// or s3:// or https:// or http:// or memory://, or be a folder (got gopher://)",
        ),
        ("APC_MANAGEMENT_URL", "gopher://x", "must begin with http:// or https:// (got gopher://)"),
        ("APC_TOPOLOGY_URL", "x", "must begin with amqp:// or amqps:// (got no URL)"),
        ("APC_LLM_BASE_URL", "gopher://x", "must begin with https:// or http:// (got gopher://)"),
    ],
)
def test_a_place_that_is_none_is_refused_by_apc_config(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError) as refused:
        settings_in_force()
    assert sentence_of(refused.value) == f"{name} {sentence}"


async def test_wrong_arguments_of_agents_add_come_before_a_missing_broker() -> None:
    assert not BusSettings().amqp_nodes
    with pytest.raises(InputUnusable, match="--rights: 'fly' is none of"):
        await add_agent(AgentForm("a-1", "role", "swarm", "fly", "", (), None))
    with pytest.raises(InputUnusable, match=r"--speaks: 'apc/2' is none of apc/1.0, apc/1.1"):
        await add_agent(AgentForm("a-1", "role", "swarm", "", "", (), None, "apc/1.1, apc/2"))


def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A container that runs as another user than its folder's owner. Root may read all, so the error is raised."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), ".env")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dotenv, "_resolve_config_file", refuse)
    with pytest.raises(SystemExit) as ended:
        main(["config"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"cannot look for .env in {tmp_path}: Permission denied" in said

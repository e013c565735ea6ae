"""What holds for every command: help, version, one clear line for bad input."""

import json

import pytest
from tests.support.apc_command import ApcCommand

from apc_cli.commands import COMMANDS, loaded


def test_version(apc: ApcCommand) -> None:
    asked = apc("--version")

    assert asked.returncode == 0
    assert asked.stdout.startswith("apc ")


def test_alone_it_shows_its_help(apc: ApcCommand) -> None:
    asked = apc()

    assert asked.returncode == 2
    assert "Usage: apc" in asked.stdout
    assert asked.stderr == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_is_that_of_its_help(name: str) -> None:
    assert COMMANDS[name][1] == " ".join(loaded(name).help.partition("\n\n")[0].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-command",),
        ("packet", "no-such-command"),
        ("packet", "validate"),
        ("packet", "trace", "--packet-id", "no-uuid"),
        ("packet", "trace", "--type", "NO_SUCH_TYPE"),
        ("packet", "trace"),
        ("packet", "replay", "--run-id", "r"),
        ("automl", "run", "--generations", "0"),
        ("automl", "run", "--seed", "x"),
        ("automl", "run", "--data", "mine.csv"),
        ("worker", "no_such_module:agent"),
        ("worker", "no_colon"),
        ("worker", "json:dumps"),
        ("up", "--agent", "no_such_module:agent"),
        ("agent", "add", "a"),
        ("agent", "add", "a", "--role", "r", "--swarm", "s"),
        ("agent", "add", "a", "b", "--role", "r", "--swarm", "s"),
        ("agent", "add", "json:dumps", "--role", "r"),
        ("agent", "list"),
        ("serve", "orchestrator"),
        ("serve", "persister"),
        ("migrate",),
        ("topology", "apply"),
    ],
)
def test_bad_input_is_one_clear_line(apc: ApcCommand, arguments: tuple[str, ...]) -> None:
    refused = apc(*arguments)

    assert refused.returncode == 2
    assert refused.stderr.startswith("apc: ")
    assert len(refused.stderr.splitlines()) == 1
    assert refused.stdout == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [("APC_SHARDS", "0"), ("APC_SHARDS", "many"), ("APC_AMQP_URL", "somewhere"), ("APC_LOG_LEVEL", "loud")],
)
def test_a_bad_setting_is_named(apc: ApcCommand, name: str, value: str) -> None:
    refused = apc("config", given={name: value})

    assert refused.returncode == 2
    assert name in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_config_hides_secrets(apc: ApcCommand) -> None:
    given = {
        "APC_AMQP_URL": "amqp://me:hunter2@one:5672/,amqp://me:hunter2@two:5672/",
        "APC_DATABASE_URL": "postgresql://me:hunter2@db/apc",
        "APC_ARTIFACTS_URL": "s3://key:hunter2@bucket/x",
    }

    shown = apc("config", given=given)

    assert shown.returncode == 0
    assert "hunter2" not in shown.stdout
    settings = {row["name"]: row for row in json.loads(shown.stdout)}
    assert settings["APC_AMQP_URL"]["value"] == "amqp://me:***@one:5672/,amqp://me:***@two:5672/"
    assert settings["APC_AMQP_URL"]["set_by"] == "environment"
    assert settings["APC_SHARDS"] == {"name": "APC_SHARDS", "value": 1, "set_by": "default", "used_by": "all"}


def test_settings_are_read_from_a_file(apc: ApcCommand) -> None:
    (apc.folder / ".env").write_text("APC_SHARDS=4\nRABBITMQ_PASSWORD=secret\n")

    rows = json.loads(apc("topology", "show").stdout)

    assert {row["queue"] for row in rows if row["exchange"] == "apc.ingress"} == {f"apc.gate.{n}" for n in range(4)}


def test_topology_exports_definitions_without_passwords(apc: ApcCommand) -> None:
    exported = apc("topology", "export", "--out", "deploy/definitions.json", "--vhost", "apc")

    assert exported.returncode == 0
    definitions = json.loads((apc.folder / "deploy/definitions.json").read_text())
    assert {exchange["name"] for exchange in definitions["exchanges"]} >= {"apc.ingress", "apc.receipts", "apc.log"}
    assert all(user["password_hash"] == "" for user in definitions["users"])
    rights = {grant["user"]: grant for grant in definitions["permissions"]}
    assert rights["persister"]["write"] == "^$"

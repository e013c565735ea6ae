"""The settings: from the environment and `.env`, each in one place, each read."""

import ast
import json
import re
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from apc_bus.secrecy import hide
from apc_bus.settings import (
    ApcSettings,
    BusSettings,
    DatabaseSettings,
    OrchestratorSettings,
    PersisterSettings,
    RelevanceSettings,
    SituationSettings,
    WebSettings,
    WorkerSettings,
    all_settings,
    variable_of,
)

ROOT = Path(__file__).parents[3]
PRODUCT = ("bus", "log", "agents", "orchestrator", "persister", "web", "client", "doors", "cli", "apps")
UNIT = re.compile(r"_(SECONDS|MS|BYTES|URL|FILE|PORT)$")
ITS_VALUE_AND_ITS_PLACE = {"APC_AGENT_KEY", "APC_LOG_KEY", "APC_BROKER_PASSWORDS"}
"""A secret as text, or the file that holds it: two variables on purpose."""
READ_THE_ENVIRONMENT = {
    "apps/apc_automl/model/model_reader.py",  # hands on what the numeric libraries read
    "apps/apc_automl/model/model_types.py",  # keeps skrub from making a folder in the home folder
    "bus/apc_bus/crash_points.py",  # before any settings
    "bus/apc_bus/telemetry.py",  # NO_COLOR and TERM
    "bus/apc_bus/trace_export.py",  # a variable of OpenTelemetry
    "cli/apc_cli/commands/__init__.py",  # looks for what nobody reads
    "cli/apc_cli/commands/demo.py",  # says the command for what it has shown
    "cli/apc_cli/commands/demo_stage.py",  # hands on nothing but where its run is
    "cli/apc_cli/output/safe_console.py",  # NO_COLOR
    "cli/apc_cli/system/up.py",  # hands all of it on
    "cli/apc_cli/system/supervisor.py",  # hands all of it on
    "persister/apc_persister/database/postmaster.py",  # keeps the PG... of a shell from the embedded server
    "apps/apc_automl/run/status.py",  # repeats in a command what was typed
}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither variables nor `.env` of the one who runs the tests."""
    monkeypatch.chdir(tmp_path)
    for name in ("APC_AMQP_URL", "APC_DATABASE_URL", "APC_SHARDS", "APC_DATA_DIR", "APC_ARTIFACTS_URL"):
        monkeypatch.delenv(name, raising=False)


def test_defaults_need_no_broker() -> None:
    settings = BusSettings()
    assert settings.amqp_nodes == ()
    assert settings.shards == 1
    assert settings.artifacts == str(Path(".apc") / "artifacts")
    assert DatabaseSettings().database_url is None


@pytest.mark.parametrize(("shards", "remedy"), [("3", "set 2 or 4"), ("255", "set 128 or 256")])
def test_a_number_of_shards_that_slots_cannot_be_divided_into_is_refused(
    monkeypatch: pytest.MonkeyPatch, shards: str, remedy: str
) -> None:
    monkeypatch.setenv("APC_SHARDS", shards)
    with pytest.raises(
        ValidationError, match=rf"power of two from 1 to 256 \(got {shards}\): {remedy}; .*operations\.md"
    ):
        BusSettings()


def test_several_nodes_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_AMQP_URL", "amqp://u:secret@a/v, amqps://u:secret@b/v")
    settings = BusSettings()
    assert settings.amqp_nodes == ("amqp://u:secret@a/v", "amqps://u:secret@b/v")
    assert "secret" not in repr(settings)
    assert "secret" not in settings.model_dump_json()


def test_dotenv_is_read(tmp_path: Path) -> None:
    lines = ["APC_SHARDS=4", "APC_CONTEXT_RECENT_MESSAGES=3", "APC_RELEVANCE_HISTORY=0.9", "APC_SOMETHING_ELSE=1"]
    (tmp_path / ".env").write_text("\n".join(lines))
    assert {kind().shards for kind in (BusSettings, OrchestratorSettings, PersisterSettings, WorkerSettings)} == {4}
    assert SituationSettings().recent_messages == 3
    assert RelevanceSettings().history == 0.9


@pytest.mark.parametrize("kind", list(all_settings()))
def test_every_class_reads_dotenv(kind: type[ApcSettings]) -> None:
    assert kind.model_config["env_file"] == ".env"
    assert kind.model_config["frozen"]
    assert str(kind.model_config["env_prefix"]).startswith("APC_")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("APC_AMQP_URL", "http://host"),
        ("APC_SHARDS", "0"),
        ("APC_CONSUMER_CHECK", "PT0.1S"),
        ("APC_PUBLISH_WINDOW", "0"),
    ],
)
def test_what_cannot_be_used_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError):
        BusSettings()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("90", r"must be between 1 and 60 seconds \(got 90\)"),
        ("0.5", r"must be between 1 and 60 seconds \(got 0.5\)"),
        ("PT61S", r"must be between 1 and 60 seconds \(got 61\)"),
        ("1.5", r"must be whole seconds \(got 1.5\)"),
    ],
)
def test_a_heartbeat_out_of_bounds_is_refused(monkeypatch: pytest.MonkeyPatch, given: str, complaint: str) -> None:
    monkeypatch.setenv("APC_HEARTBEAT", given)
    with pytest.raises(ValidationError, match=complaint):
        BusSettings()


@pytest.mark.parametrize("kind", [OrchestratorSettings, PersisterSettings])
@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("[]", "at least one shard"),
        ("[0, 0]", "each once"),
        ("[0, 2]", r"names \[0, 2\], and APC_SHARDS=2 makes 0 to 1"),
    ],
)
def test_shards_that_do_not_exist_are_not_served(
    monkeypatch: pytest.MonkeyPatch, kind: type[OrchestratorSettings | PersisterSettings], given: str, complaint: str
) -> None:
    monkeypatch.setenv("APC_SHARDS", "2")
    assert kind().own_shards == [0, 1]
    monkeypatch.setenv("APC_SERVE_SHARDS", given)
    with pytest.raises(ValidationError, match=complaint):
        kind()


@pytest.mark.parametrize(("seconds", "is_warned"), [("1", True), ("4", True), ("5", False), ("60", False)])
def test_a_short_heartbeat_is_warned_of(monkeypatch: pytest.MonkeyPatch, seconds: str, is_warned: bool) -> None:
    monkeypatch.setenv("APC_HEARTBEAT", seconds)
    assert ["fail-over times are not promised" in one for one in BusSettings().warnings()] == [True] * is_warned


@pytest.mark.parametrize(("seconds", "is_warned"), [("1", True), ("2", True), ("3", False), ("60", False)])
def test_the_short_heartbeat_of_a_host_is_not_warned_of(
    monkeypatch: pytest.MonkeyPatch, seconds: str, is_warned: bool
) -> None:
    """What is short for others is what it has; below that its busy loop would be taken for a frozen one."""
    monkeypatch.setenv("APC_HEARTBEAT", seconds)
    said = BusSettings().warnings(timedelta(seconds=3))
    assert ["below 3 s a busy host counts as frozen" in one for one in said] == [True] * is_warned


def test_each_variable_is_declared_once() -> None:
    declared: dict[str, set[str]] = defaultdict(set)
    for kind in all_settings():
        for base in kind.__mro__:
            if issubclass(base, ApcSettings):
                for field in base.__annotations__.keys() & base.model_fields.keys():
                    declared[variable_of(base, field)].add(base.__qualname__)
    assert declared.keys() == {variable_of(kind, field) for kind in all_settings() for field in kind.model_fields}
    assert {name: kinds for name, kinds in declared.items() if len(kinds) > 1} == {}


def test_no_two_variables_name_one_thing() -> None:
    """APC_HEARTBEAT and APC_HEARTBEAT_SECONDS were two."""
    things: dict[str, set[str]] = defaultdict(set)
    for kind in all_settings():
        for field in kind.model_fields:
            name = variable_of(kind, field)
            things[UNIT.sub("", name)].add(name)
    assert {thing for thing, names in things.items() if len(names) > 1} == ITS_VALUE_AND_ITS_PLACE


@pytest.mark.long
def test_each_field_is_read() -> None:
    read = {node.attr for tree in _product().values() for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    unread = {variable_of(kind, field) for kind in all_settings() for field in kind.model_fields.keys() - read}
    assert unread == set()


def test_nothing_else_reads_the_environment() -> None:
    readers = {
        path
        for path, tree in _product().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    assert readers == READ_THE_ENVIRONMENT


def _product() -> dict[str, ast.Module]:
    """Return every module of the product, by its path."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in _modules()}


def _modules() -> Iterator[Path]:
    for component in PRODUCT:
        yield from sorted((ROOT / component).rglob("*.py"))


def test_certificates_are_added_to_a_url_without_a_host(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.touch()
    settings = DatabaseSettings(database_url=SecretStr("postgresql:///apc?host=db"), database_ca_file=authority)
    assert settings.url is not None and settings.url.startswith("postgresql:///apc?host=db&sslmode=verify-full")


@pytest.mark.parametrize(
    "password", ["change1me", "changeme", "CHANGE12ME", "change%31me", "%43hange2%6De", "change1me%21"]
)
def test_a_password_of_the_example_is_refused(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    monkeypatch.setenv("APC_DATABASE_URL", f"postgresql://apc:{password}@postgres/apc")
    with pytest.raises(ValidationError, match=r"APC_DATABASE_URL holds an example password"):
        DatabaseSettings()
    monkeypatch.setenv("APC_DATABASE_URL", "postgresql://apc:interchange1mean@postgres/apc")
    assert DatabaseSettings().url


def test_a_secret_may_be_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apc_database_url").write_text("postgresql://apc:of-the-file@postgres/apc\n")
    assert DatabaseSettings(_secrets_dir=tmp_path).url == "postgresql://apc:of-the-file@postgres/apc"
    monkeypatch.setenv("APC_DATABASE_URL", "postgresql://apc:of-the-environment@postgres/apc")
    assert "of-the-environment" in str(DatabaseSettings(_secrets_dir=tmp_path).url)


@pytest.mark.parametrize(
    ("databases", "said"),
    [
        ({"home": "postgresql://db/east"}, "APC_DATABASES: 'home' is the database of APC_DATABASE_URL"),
        ({"East": "postgresql://db/east"}, "APC_DATABASES: 'East' must be a name of"),
        ({"east": "http://db/east"}, r"APC_DATABASES: 'east' must begin with postgresql://"),
        ({"east": "postgresql://db:99999/east"}, "APC_DATABASES: 'east' must have ports"),
        ({"east": "postgresql://apc:change1me@db/east"}, "APC_DATABASES: 'east' holds an example password"),
        ({"east": "postgresql://other@db/apc?sslmode=require"}, "'east' is the database of 'home'"),
        (
            {"east": "postgresql:///one?host=/run", "west": "postgresql://me@/one?host=/run"},
            "'west' is the database of",
        ),
    ],
)
def test_databases_that_cannot_be(monkeypatch: pytest.MonkeyPatch, databases: dict[str, str], said: str) -> None:
    monkeypatch.setenv("APC_DATABASE_URL", "postgresql://apc@db/apc")
    monkeypatch.setenv("APC_DATABASES", json.dumps(databases))
    with pytest.raises(ValidationError, match=said):
        DatabaseSettings()


def test_further_databases_have_names_and_the_same_certificates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert DatabaseSettings().other_urls == {}
    (authority := tmp_path / "ca.pem").touch()
    monkeypatch.setenv("APC_DATABASES", '{"east": "postgresql://apc:secret@db/east"}')
    with pytest.raises(ValidationError, match="APC_DATABASES needs APC_DATABASE_URL"):
        DatabaseSettings()
    monkeypatch.setenv("APC_DATABASE_URL", "postgresql://apc@db/apc")
    monkeypatch.setenv("APC_DATABASE_CA_FILE", str(authority))
    settings = DatabaseSettings()
    assert settings.other_urls["east"].startswith("postgresql://apc:secret@db/east?sslmode=verify-full")
    assert "secret" not in repr(settings) and hide(settings.databases) == {"east": "postgresql://apc:***@db/east"}
    with pytest.raises(ValidationError, match="APC_DATABASES cannot be used with APC_ENCRYPT_BODIES"):
        PersisterSettings(encrypt_bodies=True, subject_master_key=SecretStr(b64encode(bytes(32)).decode()))


@pytest.mark.parametrize(("name", "value"), [("APC_DATABASES", '{"east": }'), ("APC_WEB_HOSTS", "a,b")])
def test_what_is_no_json_names_its_setting(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError, match="write it as JSON") as raised:
        (DatabaseSettings if name == "APC_DATABASES" else WebSettings)()
    assert raised.value.errors()[0]["loc"] == (name.removeprefix("APC_").lower(),)

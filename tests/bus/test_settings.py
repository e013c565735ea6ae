"""Settings of the bus, from the environment."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from apc_bus.settings import BusSettings, DatabaseSettings


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither variables nor `.env` of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    for name in ("APC_AMQP_URL", "APC_DATABASE_URL", "APC_SHARDS", "APC_DATA_DIR", "APC_ARTIFACTS_URL"):
        monkeypatch.delenv(name, raising=False)


def test_defaults_need_no_broker() -> None:
    settings = BusSettings()
    assert settings.amqp_nodes == ()
    assert settings.shards == 1
    assert settings.artifacts == str(Path(".apc") / "artifacts")
    assert DatabaseSettings().database_url is None


def test_several_nodes_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_AMQP_URL", "amqp://u:secret@a/v, amqps://u:secret@b/v")
    settings = BusSettings()
    assert settings.amqp_nodes == ("amqp://u:secret@a/v", "amqps://u:secret@b/v")
    assert "secret" not in repr(settings)
    assert "secret" not in settings.model_dump_json()


def test_dotenv_is_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("APC_SHARDS=4\nAPC_SOMETHING_ELSE=1\n")
    assert BusSettings().shards == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("APC_AMQP_URL", "http://host"),
        ("APC_SHARDS", "0"),
        ("APC_HEARTBEAT", "PT0.1S"),
        ("APC_PUBLISH_WINDOW", "0"),
    ],
)
def test_what_cannot_be_used_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError):
        BusSettings()

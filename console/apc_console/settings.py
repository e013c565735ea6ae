"""What the console reads of the settings, and the list of all of them for `apc config`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from apc_bus.settings import BusSettings, DatabaseSettings


class ConsoleSettings(BaseSettings):
    """What only the console needs."""

    model_config = SettingsConfigDict(
        env_prefix="APC_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    topology_url: SecretStr | None = None
    """AMQP URL of the deploy-time user who may declare; none = APC_AMQP_URL."""
    management_url: SecretStr | None = None
    """`http(s)://user:password@host:15672` of RabbitMQ's management plugin, a user with tag administrator: lets
    `apc agents add` and `revoke` make and delete broker users, and `apc doctor` look at them; none = they do not."""
    broker_passwords: SecretStr | None = None
    """JSON object, broker user -> password: what `apc topology export` and `apc agents add` give to the users."""
    broker_passwords_file: Path | None = None
    """Where the passwords that they make are kept, mode 0600; none = `<data_dir>/broker-passwords.json`."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level of our own events that the services write."""
    health_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of `/healthz`, `/readyz`, `/startup` and `/metrics` of `apc serve`; none = no such pages."""
    supervised: bool = False
    """Whether the process ends when its standard input does: `apc up` and `apc run` set it for what they start."""
    chat_tokens: SecretStr | None = None
    """`user=token,user=token`: who may talk to `apc serve chat`; none = whoever is on this machine, as one user."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting in force."""

    name: str
    value: Any
    is_default: bool
    used_by: str

    def row(self) -> dict[str, Any]:
        """One line of `apc config`."""
        return {
            "name": self.name,
            "value": hide(self.value),
            "set_by": "default" if self.is_default else "environment",
            "used_by": self.used_by,
        }


def settings_in_force() -> list[Setting]:
    """Every setting of every service, by name; one that several services read stands once."""
    found: dict[str, Setting] = {}
    for owner, settings in _all_settings():
        prefix = str(settings.model_config.get("env_prefix", ""))
        for field in type(settings).model_fields:
            name = f"{prefix}{field}".upper()
            users = _join(found[name].used_by, owner) if name in found else owner
            is_default = field not in settings.model_fields_set
            found[name] = Setting(name, getattr(settings, field), is_default, users)
    return [found[name] for name in sorted(found)]


def _join(users: str, user: str) -> str:
    return users if users == "all" else f"{users}, {user}"


def hide(value: Any) -> Any:
    """A value as it may be shown: the password of a URL and other secrets are `***`."""
    match value:
        case SecretStr():
            secret = value.get_secret_value()
            return ",".join(map(hide_password, secret.split(","))) if "://" in secret else "***"
        case str() if "://" in value:
            return hide_password(value)
        case _:
            return value


def hide_password(url: str) -> str:
    """A URL without its password; `***` when it cannot be read."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    if parts.password is None:
        # A password may also stand in the query (`?password=…`).
        return url if "password" not in parts.query else parts._replace(query="***").geturl()
    user_and_host = f"{parts.username or ''}:***@{parts.netloc.rpartition('@')[2]}"
    return parts._replace(netloc=user_and_host).geturl()


def _all_settings() -> Iterator[tuple[str, BaseSettings]]:
    from apc_agents.automl.settings import AutomlSettings
    from apc_agents.settings import LLMSettings, WorkerSettings
    from apc_bus.trace_export import TraceSettings
    from apc_orchestrator.settings import OrchestratorSettings
    from apc_persister.settings import PersisterSettings

    yield "all", BusSettings()
    yield "all", DatabaseSettings()
    yield "console", ConsoleSettings()
    yield "worker", WorkerSettings()
    yield "orchestrator", OrchestratorSettings()
    yield "persister", PersisterSettings()
    yield "automl", AutomlSettings()
    yield "llm", LLMSettings()
    yield "all", TraceSettings()

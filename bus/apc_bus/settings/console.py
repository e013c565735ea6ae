"""The command line, and what it says of its services."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator

from apc_bus.settings.base import ApcSettings, check_scheme


class ConsoleSettings(ApcSettings):
    """What only the console needs."""

    topology_url: SecretStr | None = None
    """AMQP URL of the deploy-time user who may declare; none = APC_AMQP_URL."""
    management_url: SecretStr | None = None
    """`http(s)://user:password@host:15672` of RabbitMQ's management plugin, a user with tag administrator: lets
    `apc agent add` and `revoke` make and delete broker users, and `apc doctor` look at them; none = they do not."""
    broker_passwords: SecretStr | None = None
    """JSON object, broker user -> password: what `apc topology export` and `apc agent add` give to the users."""
    broker_passwords_file: Path | None = None
    """Where the passwords that they make are kept, mode 0600; none = `<data_dir>/broker-passwords.json`."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level of our own events that the services write."""
    health_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of `/healthz`, `/readyz`, `/startup` and `/metrics` of `apc serve`; none = no such pages."""
    health_host: str = "127.0.0.1"
    """Address on which these pages are served; another one shows them to whoever reaches it."""
    supervised: bool = False
    """Whether the process ends when its standard input does: set by commands that start processes (`apc up`)."""
    chat_tokens: SecretStr | None = None
    """`user=token,user=token`: who may talk to `apc serve chat`; none = whoever is on this machine, as one user."""

    @field_validator("topology_url")
    @classmethod
    def _check_topology_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            check_scheme(value.get_secret_value(), ("amqp", "amqps"))
        return value

    @field_validator("management_url")
    @classmethod
    def _check_management_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            check_scheme(value.get_secret_value(), ("http", "https"))
        return value

"""The command line, and what it says of its services."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator

from apc_bus.settings.setting_sources import ApcSettings, check_scheme


class ConsoleSettings(ApcSettings):
    """Settings of the console only."""

    topology_url: SecretStr | None = None
    """AMQP URL of the deploy-time user, who may declare exchanges and queues; none = APC_AMQP_URL."""
    management_url: SecretStr | None = None
    """`http(s)://user:password@host:15672` of RabbitMQ's management plugin, with a user that has the tag administrator.
    With it, `apc agent add` and `revoke` create and delete broker users, and `apc doctor` checks them."""
    broker_passwords: SecretStr | None = None
    """JSON object that maps broker users to the passwords that `apc topology export` and `apc agent add` set."""
    broker_passwords_file: Path | None = None
    """File for generated passwords, mode 0600; none = `<data_dir>/broker-passwords.json`."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level of the product's own log events."""
    health_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of `/healthz`, `/readyz`, `/startup` and `/metrics` in `apc serve` and `apc worker`; none = no health
    pages."""
    health_host: str = "127.0.0.1"
    """Address of the health pages; any other than loopback shows them to everyone who can reach it."""
    supervised: bool = False
    """Exit when standard input closes; set by commands that start processes (`apc up`)."""
    chat_tokens: SecretStr | None = None
    """`user=token,user=token`: users of `apc serve chat`; none = everybody on this machine, as one user."""

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

"""The log's name and key."""

from pathlib import Path

from pydantic import SecretStr, field_validator

from apc_bus.settings.deployment import DeploymentSettings


class LogKeySettings(DeploymentSettings):
    """The log's name and the key that signs its checkpoints. Verifying needs only the public key."""

    log_name: str | None = None
    """Name of the log in its checkpoints, whose origin is `<log name>/<shard>`. None = `apc-log-` and the beginning of
    the signing key's hash. Better: a name below your domain, such as `example.org/apc-log`."""
    log_key_file: Path | None = None
    """File with the Ed25519 key (PEM) that signs checkpoints; none = `<data_dir>/log-key.pem`."""
    log_key: SecretStr | None = None
    """The same key as text, instead of a file."""
    log_previous_keys: str = ""
    """Previous public keys of this log, as printed by `apc log key`, separated by blanks. After a change of key or
    name, the log writer continues only after checkpoints of these keys."""

    @field_validator("log_name")
    @classmethod
    def _one_word(cls, value: str | None) -> str | None:
        if value is not None and any(letter.isspace() or letter == "+" for letter in value):
            raise ValueError("must be one word without +")
        return value

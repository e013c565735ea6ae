"""The log's name and key."""

from pathlib import Path

from pydantic import SecretStr, field_validator

from apc_bus.settings.deployment import DeploymentSettings


class LogKeySettings(DeploymentSettings):
    """The log's name and the key that signs its checkpoints. Whoever only checks needs the public key alone."""

    log_name: str | None = None
    """What the log calls itself in its checkpoints; with the shard it is their origin, `<log name>/<shard>`. None =
    `apc-log-` and the beginning of the signing key's hash; better is a name below a domain of yours:
    `example.org/apc-log`."""
    log_key_file: Path | None = None
    """Ed25519 key in PEM that signs checkpoints; none = `<data_dir>/log-key.pem`."""
    log_key: SecretStr | None = None
    """The same key as text, instead of a file."""
    log_previous_keys: str = ""
    """Public keys that signed this log before, as `apc log key` printed them, blanks between them: after a change of
    the key or the name the writer goes on behind the checkpoints of these alone."""

    @field_validator("log_name")
    @classmethod
    def _one_word(cls, value: str | None) -> str | None:
        if value is not None and any(letter.isspace() or letter == "+" for letter in value):
            raise ValueError("must be one word without +")
        return value

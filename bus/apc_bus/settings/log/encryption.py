"""The encryption of bodies in the log."""

from base64 import b64decode
from typing import Self

from pydantic import SecretStr, model_validator

from apc_bus.settings.setting_sources import ApcSettings


class EncryptionSettings(ApcSettings):
    """Encryption of bodies in the log."""

    encrypt_bodies: bool = False
    """Store bodies encrypted with a key for each subject, so that `apc log erase` can destroy them."""
    subject_field: str | None = None
    """Field of a packet's metadata that names its subject; none, or if the field is absent: the sender."""
    subject_master_key: SecretStr | None = None
    """32 bytes as base64 (`openssl rand -base64 32`) that wrap the subjects' keys; the log writer and the gate need
    the same one."""

    @model_validator(mode="after")
    def _check_master_key(self) -> Self:
        if self.encrypt_bodies and self.subject_master_key is None:
            raise ValueError("APC_ENCRYPT_BODIES needs APC_SUBJECT_MASTER_KEY: `openssl rand -base64 32` makes one")
        if self.subject_master_key is not None and len(self.master_secret or b"") != 32:
            raise ValueError("APC_SUBJECT_MASTER_KEY must be 32 bytes as base64: `openssl rand -base64 32`")
        return self

    @property
    def master_secret(self) -> bytes | None:
        """The master key's bytes; None without one, or when it is no base64."""
        if self.subject_master_key is None:
            return None
        try:
            return b64decode(self.subject_master_key.get_secret_value(), validate=True)
        except ValueError:
            return None

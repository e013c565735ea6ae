"""The keys of agents."""

from pathlib import Path

from pydantic import SecretStr

from apc_bus.settings.base import ApcSettings


class SigningSettings(ApcSettings):
    """With which key an agent signs."""

    agent_key_file: Path | None = None
    """Ed25519 key in PEM with which the agent signs; `{agent_id}` in it stands for the agent's id. None =
    it does not sign."""
    agent_key: SecretStr | None = None
    """The same key as text, instead of a file."""

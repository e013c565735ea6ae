"""The keys of agents."""

from pathlib import Path

from pydantic import SecretStr

from apc_bus.settings.setting_sources import ApcSettings


class SigningSettings(ApcSettings):
    """The key with which an agent signs."""

    agent_key_file: Path | None = None
    """File with the Ed25519 key (PEM) of the agent; `{agent_id}` stands for the agent's id. None = the agent does not
    sign."""
    agent_key: SecretStr | None = None
    """The same key as text, instead of a file."""

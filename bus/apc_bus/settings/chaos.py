"""The faults of `apc up --chaos`."""

from pathlib import Path

from apc_bus.settings.setting_sources import ApcSettings


class ChaosSettings(ApcSettings):
    """Faults to inject into an agent's messages, and where its score is stored."""

    chaos_profile: Path | None = None
    """TOML file with the faults to inject into an agent's messages (docs/how-to/chaos.md); none = no faults."""
    chaos_scores: Path | None = None
    """Folder for the scores of agents; `apc up --chaos` sets it."""

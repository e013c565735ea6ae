"""The faults of `apc up --chaos`."""

from pathlib import Path

from apc_bus.settings.base import ApcSettings


class ChaosSettings(ApcSettings):
    """Which faults strike an agent, and where it says how it bore them."""

    chaos_profile: Path | None = None
    """TOML file with the faults that strike the messages of an agent (docs/how-to/chaos.md); none = none do."""
    chaos_scores: Path | None = None
    """Folder in which a disturbed agent leaves its score; `apc up --chaos` sets it."""

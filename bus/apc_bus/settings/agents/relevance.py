"""The Symbolic Resonance Score."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from apc_bus.settings.setting_sources import ApcSettings


class RelevanceSettings(ApcSettings):
    """Weights of the five parts; only their proportions matter. If all are 0, every score is 0."""

    model_config = SettingsConfigDict(env_prefix="APC_RELEVANCE_")

    symbols: float = Field(default=0.45, ge=0, le=1_000)
    archetype: float = Field(default=0.1, ge=0, le=1_000)
    fingerprint: float = Field(default=0.1, ge=0, le=1_000)
    history: float = Field(default=0.25, ge=0, le=1_000)
    directive: float = Field(default=0.1, ge=0, le=1_000)
    half_life_seconds: float = Field(default=600.0, gt=0)
    """Time after which a message of the history counts half."""

"""The context object of an agent."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from apc_bus.settings.setting_sources import ApcSettings


class SituationSettings(ApcSettings):
    """Limits of a snapshot and of a stored conversation."""

    model_config = SettingsConfigDict(env_prefix="APC_CONTEXT_")

    recent_messages: int = Field(default=20, ge=0)
    """Maximum number of the newest messages."""
    recent_tokens: int = Field(default=2_000, ge=0)
    """Maximum tokens of these messages together."""
    summary_tokens: int = Field(default=200, ge=0)
    """Maximum tokens of the summary of older messages."""
    relevant_messages: int = Field(default=5, ge=0)
    """Number of ids of the most similar older messages."""
    kept_messages: int = Field(default=1_000, ge=1)
    """Messages that the stored conversation keeps, the newest ones; the log has all."""
    kept_bytes: int = Field(default=4 * 1024 * 1024, ge=1)
    """Maximum size of their texts; at least one message is kept."""

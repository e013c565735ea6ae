"""The context object of an agent."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from apc_bus.settings.base import ApcSettings


class SituationSettings(ApcSettings):
    """How much of a conversation goes into a snapshot, and how much of it is kept."""

    model_config = SettingsConfigDict(env_prefix="APC_CONTEXT_")

    recent_messages: int = Field(default=20, ge=0)
    """At most so many of the newest messages, as long as they fit."""
    recent_tokens: int = Field(default=2_000, ge=0)
    """Their tokens together; the newest message that does not fit ends the list."""
    summary_tokens: int = Field(default=200, ge=0)
    """Of the summary of what does not fit."""
    relevant_messages: int = Field(default=5, ge=0)
    """Ids of older messages that are most like the one at hand."""
    kept_messages: int = Field(default=1_000, ge=1)
    """The conversation in the memory store keeps the newest; the log has all of them."""
    kept_bytes: int = Field(default=4 * 1024 * 1024, ge=1)
    """Their texts together; one message is kept in any case."""

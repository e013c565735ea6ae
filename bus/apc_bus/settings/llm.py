"""Models."""

from datetime import timedelta

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from apc_bus.durations import Duration
from apc_bus.settings.base import ApcSettings, check_scheme


class LLMSettings(ApcSettings):
    """Which model is asked, and how much it may be asked and answer."""

    model_config = SettingsConfigDict(env_prefix="APC_LLM_")

    model: str | None = None
    """`provider:name` as pydantic-ai knows it (`openai:…`, `anthropic:…`, `test`); with base_url the bare name."""
    base_url: str | None = None
    """URL of a service that speaks OpenAI's API; none = the provider's own."""
    api_key: SecretStr | None = None
    """Key for base_url, or for `openai:`; other providers read their own variables (`ANTHROPIC_API_KEY`, …)."""
    max_steps: int = Field(default=8, ge=1, le=100)
    """Responses of the model to one message: after so many the loop ends."""
    message_tokens: int | None = Field(default=None, ge=1)
    """Tokens that one message may cost, input and output of all steps; none = no bound but max_steps."""
    output_retries: int = Field(default=2, ge=0, le=10)
    """How often a model is told how to mend an answer that is no AgentResponse."""
    answer_bytes: int = Field(default=65_536, ge=1_024)
    """The longest answer that is read."""
    records: int = Field(default=100, ge=1)
    """Changes of a conversation for which the answers of the model are kept: what runs again asks no model."""
    answer_tokens: int | None = Field(default=None, ge=1)
    """What a provider is told not to exceed in one answer; none = its own bound."""
    timeout: Duration = timedelta(seconds=60)
    """How long one request may take."""
    input_price: float | None = Field(default=None, ge=0)
    """USD for a million tokens that are sent, of a model that is not in pydantic-ai's price list."""
    output_price: float | None = Field(default=None, ge=0)
    """The same, of those that are answered."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """None = the model's own."""

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, value: str | None) -> str | None:
        if value is not None:
            check_scheme(value, ("https", "http"))
        return value

"""Models."""

from datetime import timedelta

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from apc_bus.settings.durations import Duration
from apc_bus.settings.setting_sources import ApcSettings, check_scheme


class LLMSettings(ApcSettings):
    """The model and the limits of its requests and answers."""

    model_config = SettingsConfigDict(env_prefix="APC_LLM_")

    model: str | None = None
    """`provider:name` as in pydantic-ai (`openai:…`, `anthropic:…`, `test`); with APC_LLM_BASE_URL only the name."""
    base_url: str | None = None
    """URL of a service with OpenAI's API; none = the provider's own."""
    api_key: SecretStr | None = None
    """Key for base_url, or for `openai:`; other providers read their own variables (`ANTHROPIC_API_KEY`, …)."""
    max_steps: int = Field(default=8, ge=1, le=100)
    """Maximum responses of the model to one message."""
    message_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens for one message, input and output of all steps; none = limited only by APC_LLM_MAX_STEPS."""
    output_retries: int = Field(default=2, ge=0, le=10)
    """How often the model may correct an answer that is not a valid AgentResponse."""
    answer_bytes: int = Field(default=65_536, ge=1_024)
    """Maximum size of an answer."""
    records: int = Field(default=100, ge=1)
    """Changes of a conversation for which the model's answers are kept, so that a handler that runs again calls no
    model."""
    answer_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of one answer, as sent to the provider; none = the provider's limit."""
    timeout: Duration = timedelta(seconds=60)
    """Limit of one request."""
    input_price: float | None = Field(default=None, ge=0)
    """USD per million input tokens, for a model that is not in pydantic-ai's price list."""
    output_price: float | None = Field(default=None, ge=0)
    """USD per million output tokens, likewise."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Temperature; none = the model's default."""

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, value: str | None) -> str | None:
        if value is not None:
            check_scheme(value, ("https", "http"))
        return value

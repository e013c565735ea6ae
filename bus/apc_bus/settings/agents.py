"""What agents read: contexts, effects, language, models, relevance, keys, tasks."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from apc_bus.settings.sources import ApcSettings, Duration, Interval, check_scheme


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


class EffectSettings(ApcSettings):
    """Lease and retention of effects of ctx.once."""

    effect_lease: Duration = Field(default=timedelta(seconds=15), gt=timedelta(0))
    """Time without a renewal after which an unrecorded effect of ctx.once is unknown."""
    effect_poll: Duration = Field(default=timedelta(seconds=1), gt=timedelta(0))
    """Interval of the checks whether another handler has made the effect."""
    effect_retention: Duration = Field(default=timedelta(days=7), ge=timedelta(0))
    """How long effects are kept after their packet has expired; unknown ones stay until they are settled."""


class LanguageSettings(ApcSettings):
    """Language for stemming words, in relevance and in the search of memory."""

    language: str = "english"
    """A Snowball language (english, german, french, …), or `none` to disable stemming."""

    @field_validator("language")
    @classmethod
    def _check_language(cls, language: str) -> str:
        import snowballstemmer  # all of its languages, for the few who choose one

        known = ["none", *snowballstemmer.algorithms()]
        if language not in known:
            raise ValueError(f"{language!r} has no stemmer: use one of {', '.join(known)}")
        return language


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


class SigningSettings(ApcSettings):
    """The key with which an agent signs."""

    agent_key_file: Path | None = None
    """File with the Ed25519 key (PEM) of the agent; `{agent_id}` stands for the agent's id. None = the agent does not
    sign."""
    agent_key: SecretStr | None = None
    """The same key as text, instead of a file."""


class TaskSettings(ApcSettings):
    """Concurrency and lease of tasks."""

    task_concurrency: int = Field(default=4, ge=1)
    """Maximum concurrent tasks of a worker."""
    task_lease: Interval = timedelta(seconds=15)
    """Time without a renewal after which another worker takes over a task."""
    task_poll: Interval = timedelta(seconds=1)
    """Interval at which a worker checks the tasks."""

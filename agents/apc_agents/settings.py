"""Settings of agents, from the environment (prefix APC_, for models APC_LLM_) and `.env`."""

from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from apc_bus.durations import Duration


class WorkerSettings(BaseSettings):
    """How a worker takes packets, publishes its own and leaves. The broker's own settings are BusSettings."""

    model_config = SettingsConfigDict(
        env_prefix="APC_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    shards: int = Field(default=1, ge=1)
    """Number of gate shards; the same for every service."""
    database_url: SecretStr | None = None
    """`postgresql://…` for ctx.state; none = the state lives in memory and ends with the worker."""
    contract: str | None = None
    """Path of the deployment's contract file; the packaged apc/1.0 by default. The gate's is what counts."""
    agent_key_file: Path | None = None
    """Ed25519 key in PEM with which the agent signs; `{agent_id}` in it stands for the agent's id. None =
    it does not sign."""
    agent_key: SecretStr | None = None
    """The same key as text, instead of a file."""
    worker_prefetch: int = Field(default=100, ge=1, le=65535)
    """Packets that the broker hands to each of the two queues ahead; 1 when a handler may crash the process."""
    worker_consumer: Literal["handlers", "bulk"] = "handlers"
    """`handlers`: over RabbitMQ FastStream, with its middlewares. `bulk`: aio-pika alone, for the highest rates."""
    worker_intra: Literal["process", "replicas"] = "process"
    """Who handles the agent's own INTRA_AGENT packets: the process that emitted them, or any replica of the agent."""
    publish_deadline: Duration = timedelta(seconds=30)
    """How long an emit is published again before it gives up as unconfirmed."""
    ack_timeout: Duration = timedelta(seconds=30)
    """How long the gate waits for the ACKs of an emit that names no timeout itself, each time it routes the packet."""
    ack_grace: Duration = timedelta(seconds=2)
    """How much longer the emit waits than the gate: it is the gate that says who is missing."""
    task_concurrency: int = Field(default=4, ge=1)
    """Tasks that a worker runs at once."""
    task_lease: Duration = timedelta(seconds=15)
    """After so long without a sign of life a task of a dead worker is taken up by another one."""
    task_poll: Duration = timedelta(seconds=1)
    """How long a worker may take to see what other processes did to the tasks."""
    effect_lease: Duration = Field(default=timedelta(seconds=15), gt=timedelta(0))
    """After so long without a sign of life of its worker an effect of ctx.once that is not recorded is unknown."""
    effect_poll: Duration = Field(default=timedelta(seconds=1), gt=timedelta(0))
    """How long a handler may take to see that another one has made the effect it waits for."""
    effect_retention: Duration = Field(default=timedelta(days=7), ge=timedelta(0))
    """How long effects are kept after their packet has expired; unknown ones stay until they are settled."""
    claim_check_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    """Long texts of one packet, in all, that go through the artifact store because the packet would be too large."""
    drain_timeout: Duration = timedelta(seconds=15)
    """How long a stopping worker waits for the handlers that run."""
    heartbeat_silence: Duration = timedelta(seconds=30)
    """After so long without an emit a HEARTBEAT says that the agent lives."""
    outcome_linger: Duration = timedelta(milliseconds=20)
    """How long the receipts of a packet that is done wait for those of the next ones."""
    receipt_linger: Duration = timedelta(milliseconds=50)
    """How long a delivery_ack waits for the end of its handler, to travel with it."""


class LLMSettings(BaseSettings):
    """Which model is asked, and how much it may be asked and answer."""

    model_config = SettingsConfigDict(
        env_prefix="APC_LLM_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

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

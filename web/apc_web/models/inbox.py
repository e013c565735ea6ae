"""What waits for a person: dead letters, effects, tasks."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field

from apc_contracts.payloads.questions import MAX_TEXT
from apc_web.models.model_base import NEXT, ApiModel


class DeliveryAttempt(ApiModel):
    """One hop of a delivery."""

    attempt: int
    from_state: str
    to_state: str
    events: list[str]
    at: datetime
    actor: str
    error: str | None


class DeadLetterDetail(ApiModel):
    """A delivery that failed permanently."""

    session_id: str
    run_id: str
    task_id: str
    packet_id: UUID
    packet_type: str
    sender: str
    recipient: str
    attempt: int
    reason: str | None
    words: str
    """Why, one sentence."""
    died_at: datetime
    expires_at: datetime
    can_requeue: bool
    """False once the packet has expired, and for work of a session that has halted."""
    attempts: list[DeliveryAttempt]


class DeadLetterPage(ApiModel):
    """Dead letters in the order of the log, oldest first."""

    items: list[DeadLetterDetail]
    next: str | None = NEXT


class EffectSummary(ApiModel):
    """An act of a handler outside the bus."""

    packet_id: UUID
    agent_id: str
    key: str
    state: str
    """RUNNING, UNKNOWN, RESULT_LOST or MADE."""
    session_id: str
    worker: str
    claimed_at: datetime
    made_at: datetime | None
    problem: str | None
    settled_by: str | None


class EffectList(ApiModel):
    """Effects, newest first."""

    items: list[EffectSummary]


class TaskSummary(ApiModel):
    """A durable task of an agent."""

    task_id: UUID
    agent_id: str
    session_id: str
    action: str
    status: str
    progress: float
    note: str | None
    error: str | None
    attempt: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class TaskList(ApiModel):
    """Tasks, newest first."""

    items: list[TaskSummary]


class ActOutcome(ApiModel):
    """What became of an act."""

    verdict: str
    """What the gate said, or the state that followed."""
    detail: dict[str, Any]


class OpenApproval(ApiModel):
    """A question of an agent that waits for a person."""

    packet_id: UUID
    session_id: str
    run_id: str
    task_id: str
    asker: str
    may_answer: list[str]
    """Who was asked."""
    answer_as: list[str]
    """Those in whose names you may answer here; empty = not."""
    role: str | None
    """The role whose people were asked; null when they were named."""
    text: str | None
    """The question; null when the body is sealed or was erased."""
    content: dict[str, Any] | None
    """What the agent shows beside it."""
    payload_hash: str
    """SHA-256 of what is answered: the answer names it."""
    asked_at: datetime
    due_at: datetime


class ApprovalList(ApiModel):
    """Open questions, the one that is due first first."""

    items: list[OpenApproval]


class AnswerRequest(ApiModel):
    """Why a question is approved or denied."""

    note: str | None = Field(default=None, max_length=MAX_TEXT)
    """The reason, which the handler gets and the log keeps."""
    person: str | None = None
    """Who answers; null = the only one asked whom this server speaks for."""


class DeliveryName(ApiModel):
    """A delivery to act on."""

    packet_id: UUID
    session_id: str
    recipient: str


class SettleRequest(ApiModel):
    """Dead letters to requeue or to discard."""

    deliveries: list[DeliveryName]
    note: str | None = None


class SignalRequest(ApiModel):
    """Why a session is paused, resumed or stopped."""

    reason: str | None = None

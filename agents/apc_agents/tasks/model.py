"""What a task is: what it does, where it came from, how far it is."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from pydantic import Field, JsonValue

from apc_contracts.agent import ActionType, SecurityLevel
from apc_contracts.contract_model import Model, OpenMap

MAX_LOST_LEASES = 5
"""Workers that may die while they run a task, before it is given up: it may be what kills them."""
PROGRESS_STEP = 0.1
"""Progress is announced when it has grown by so much; every report of it is readable."""


class TaskStatus(StrEnum):
    """Where a task stands."""

    PENDING = "PENDING"
    """Waits for a worker, or for the tasks that it depends on."""
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


ENDED = frozenset({TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.CANCELLED})


class TaskOrigin(Model):
    """The packet whose handler started the task: its announcements have the same trace."""

    packet_id: UUID
    root_packet_id: UUID
    run_id: str
    task_id: str


class TaskSpec(Model):
    """What a task does. Never changes.

    `params` still hold their references: `variables` and `results` are what was known when the task started,
    `awaited` says which task gives the result of an action_id that was not known.
    """

    action_id: str
    action: str
    type: ActionType
    params: OpenMap = Field(default_factory=dict)
    variables: OpenMap = Field(default_factory=dict)
    results: OpenMap = Field(default_factory=dict)
    awaited: dict[str, UUID] = Field(default_factory=dict)
    security_level: SecurityLevel
    knowledge: tuple[str, ...] = ()
    display: str | None = None
    origin: TaskOrigin | None = None
    announce_to: tuple[str, ...] = ()
    """Agents that are told of it; none = the agent itself, by INTRA_AGENT packets."""
    compartment: str = ""
    """The compartment of the one who caused it: an LLM agent is told its result there only."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to be kept. `depends_on` are tasks that must succeed before it runs."""

    task_id: UUID
    agent_id: str
    session_id: str
    spec: TaskSpec
    depends_on: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task as it is kept.

    `attempt` counts its runs and fences them: only the newest may write. `lost_leases` counts the runs whose worker
    died. `error` is also the reason of a cancellation, `cancel_reason` that of one that is asked for.
    """

    task_id: UUID
    agent_id: str
    session_id: str
    spec: TaskSpec
    depends_on: tuple[UUID, ...]
    status: TaskStatus
    attempt: int
    lost_leases: int
    worker: str | None
    progress: float
    note: str | None
    result: JsonValue
    error: str | None
    cancel_reason: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON, for `apc task` and user interfaces."""
        spec = self.spec
        return {
            "task_id": str(self.task_id),
            "status": self.status.value,
            "action": spec.action,
            "action_id": spec.action_id,
            "type": spec.type.value,
            "params": dict(spec.params),
            "display": spec.display,
            "agent_id": self.agent_id,
            "session_id": self.session_id,
            "depends_on": [str(task_id) for task_id in self.depends_on],
            "progress": self.progress,
            "note": self.note,
            "result": self.result,
            "error": self.error,
            "cancel_reason": self.cancel_reason,
            "attempt": self.attempt,
            "lost_leases": self.lost_leases,
            "worker": self.worker,
            "created_at": self.created_at,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
        }

    def event(self) -> dict[str, JsonValue]:
        """Return what is announced of it, as metadata.task. Its result is not: it is read by task_id."""
        told: dict[str, JsonValue] = {
            "task_id": str(self.task_id),
            "action_id": self.spec.action_id,
            "action": self.spec.action,
            "status": self.status.value,
            "attempt": self.attempt,
            "progress": self.progress,
        }
        return told | {name: value for name, value in (("note", self.note), ("error", self.error)) if value is not None}


@dataclass(frozen=True, slots=True)
class Claim:
    """A task that a worker may run until its lease ends; `results` are those of the tasks that it awaits."""

    task: Task
    results: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """Something that is to be announced. It has its packet_id from the start: announced twice, it counts once."""

    task_id: UUID
    number: int
    packet_id: UUID
    session_id: str
    spec: TaskSpec
    document: dict[str, JsonValue]

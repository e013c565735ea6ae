"""What became of the actions of a response."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import JsonValue

from apc_contracts.agent import STATUS_ERROR, STATUS_SUCCESS, STATUS_TASK_STARTED, Action, AgentResponse


class ObservationStatus(StrEnum):
    """How an action ended, or that it goes on as a task."""

    SUCCESS = STATUS_SUCCESS
    ERROR = STATUS_ERROR
    TASK_STARTED = STATUS_TASK_STARTED
    CANCELLED = "CANCELLED"
    """It never ran, because something that it needed did not succeed."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees of one action. `error` is also the reason of a cancellation."""

    action_id: str
    action: str
    status: ObservationStatus
    result: JsonValue = None
    error: str | None = None
    task_id: str | None = None

    def to_document(self) -> dict[str, JsonValue]:
        """Return it as JSON, without empty parts."""
        document: dict[str, JsonValue] = {"action_id": self.action_id, "action": self.action, "status": self.status}
        if self.status is ObservationStatus.SUCCESS:
            document["result"] = self.result
        if self.error is not None:
            document["error"] = self.error
        if self.task_id is not None:
            document["task_id"] = self.task_id
        return document


@dataclass(frozen=True, slots=True)
class ActionReport:
    """One observation for each action, in the order of the document, sub-actions after their action.

    `response` is the response as it was carried out: with the task_ids, and with the status TASK_STARTED if there
    are any. `stop` says that the response, or one of its actions, ends the loop.
    """

    response: AgentResponse
    observations: tuple[Observation, ...]
    stop: bool

    @property
    def status(self) -> str:
        """ERROR when an action failed or was cancelled, else TASK_STARTED when one goes on, else SUCCESS."""
        found = {observation.status for observation in self.observations}
        if found & {ObservationStatus.ERROR, ObservationStatus.CANCELLED}:
            return STATUS_ERROR
        return STATUS_TASK_STARTED if ObservationStatus.TASK_STARTED in found else STATUS_SUCCESS

    @property
    def results(self) -> dict[str, JsonValue]:
        """The results by action_id, for `ActionContext(results=...)` of the next response."""
        return {one.action_id: one.result for one in self.observations if one.status is ObservationStatus.SUCCESS}

    @property
    def task_ids(self) -> dict[str, str]:
        """The tasks that were started, by action_id."""
        return {one.action_id: one.task_id for one in self.observations if one.task_id is not None}


def carried_out(response: AgentResponse, task_ids: Mapping[int, str]) -> AgentResponse:
    """Return the response with the task_ids of its actions, whose places count `response.walk()` from 0."""
    if not task_ids:
        return response
    places = iter(range(sum(1 for _ in response.walk())))

    def marked(action: Action) -> Action:
        changes: dict[str, Any] = {"task_id": task_ids.get(next(places))}
        changes["sub_actions"] = tuple(map(marked, action.sub_actions))
        return action.model_copy(update=changes)

    actions = tuple(map(marked, response.actions))
    return response.model_copy(update={"status": STATUS_TASK_STARTED, "actions": actions, "schema_version": None})

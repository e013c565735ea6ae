"""The progress of a task, from which an LLM agent adapts the threshold of its session.

Source: docs/specification/agents.md section 4 (AdaptiveThreshold: task progress, error rate, loop detection).
"""

from collections import deque
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, TypedDict

import orjson

from apc_agents.actions import ActionReport
from apc_contracts.agent import STATUS_ERROR, AgentResponse

RECENT_STEPS: Final = 5
"""So many of the newest steps count for the error rate and for a loop."""


class ThresholdSignals(TypedDict):
    """What AdaptiveThreshold is told."""

    task_progress: float
    error_rate: float
    loop_detected: bool


@dataclass(frozen=True, slots=True)
class _Step:
    asked: str
    """SHA-256 of the actions."""
    has_failed: bool


@dataclass(slots=True)
class TaskSignals:
    """The newest steps of one message on its way to an answer."""

    _recent: deque[_Step] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))

    def add(self, response: AgentResponse, report: ActionReport | None) -> None:
        """Take in a step; `report` is None when nothing of it could run."""
        has_failed = report is None or report.status == STATUS_ERROR
        self._recent.append(_Step(_asked(response), has_failed))

    def told(self, *budget_used: float) -> ThresholdSignals:
        """Return the signals; the progress is the largest share of a budget that was used."""
        return {
            "task_progress": min(1.0, max(budget_used, default=0.0)),
            "error_rate": sum(step.has_failed for step in self._recent) / max(1, len(self._recent)),
            "loop_detected": self._is_loop(),
        }

    def _is_loop(self) -> bool:
        """Return whether the newest step asked for what a recent one had asked for already."""
        *before, newest = self._recent or [None]
        return newest is not None and newest.asked in {step.asked for step in before if step is not None}


def _asked(response: AgentResponse) -> str:
    asked = [[action.type, action.action, action.params] for action in response.walk()]
    return sha256(orjson.dumps(asked, default=str, option=orjson.OPT_SORT_KEYS)).hexdigest()

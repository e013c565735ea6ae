"""The coordinators: which states and events the code behind a contract knows, and which facts its guards may read.

A contract file names its coordinator. It may drop edges of the session machine, tighten guards and change tables; it
cannot invent a state or an event, because no code would enter or raise it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Coordinator(StrEnum):
    """What moves the sessions of a contract."""

    RESEARCH = "research"
    TASK = "task"


@dataclass(frozen=True, slots=True)
class Terms:
    """The closed lists of one coordinator.

    `facts` are those that guards of the session's machine may read; `has_generations`: it needs transfer windows and a
    promotion gate.
    """

    states: tuple[str, ...]
    events: frozenset[str]
    facts: frozenset[str]
    has_generations: bool


STOP = "stop_signal_or_budget_exhausted"
"""The event of every coordinator that halts a session, whatever the reason."""
_METRICS = "rtf stability audit outcome learnability generalization_ratio symbol_coverage drift_risk"

TERMS: Mapping[Coordinator, Terms] = {
    Coordinator.RESEARCH: Terms(
        states=(
            "SESSION_OPEN",
            "DIFFERENTIATED_RESEARCH",
            "INDEPENDENT_DISCOVERY",
            "SELECTIVE_TRANSFER",
            "CONTROLLED_CONVERGENCE",
            "ARBITRATION",
            "EXECUTION",
            "VALIDATION",
            "PROMOTION",
            "CLOSED",
            "HALTED",
        ),
        events=frozenset(
            {
                "research_briefs_dispatched",
                "all_swarms_ready",
                "generation_window_open",
                "transfer_accepted",
                "generation_limit_reached",
                "candidate_pool_ready",
                "decision_committed",
                "artifact_and_eval_emitted",
                "validation_pass",
                "commons_commit_complete",
                "validation_fail_or_drift",
                STOP,
            }
        ),
        facts=frozenset(f"generation session_limit candidates vetoed veto_overridden {_METRICS}".split()),
        has_generations=True,
    ),
    Coordinator.TASK: Terms(
        states=("SESSION_OPEN", "WORKING", "REVIEW", "CLOSED", "HALTED"),
        events=frozenset({"work_started", "work_done", "review_requested", "review_passed", "review_failed", STOP}),
        facts=frozenset({"round", "max_rounds", "approvals"}),
        has_generations=False,
    ),
}

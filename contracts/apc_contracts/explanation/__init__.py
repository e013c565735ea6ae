"""Say in words where a session stands, what it waits for, and what would move it."""

from apc_contracts.explanation.explain import explain
from apc_contracts.explanation.result import Explanation, Wait
from apc_contracts.explanation.surroundings import (
    AgentPresence,
    HeldNote,
    OpenDelivery,
    RefusalCount,
    StaleDecision,
    Surroundings,
)

__all__ = [
    "AgentPresence",
    "Explanation",
    "HeldNote",
    "OpenDelivery",
    "RefusalCount",
    "StaleDecision",
    "Surroundings",
    "Wait",
    "explain",
]

"""Plays the messages of a domain to a score, as a session does: what is taken becomes history, what is not does not."""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import orjson

from apc_bus.settings import RelevanceSettings
from apc_contracts.agent import AgentContext, ContextMessage
from apc_minds.situation import resonance
from benchmarks.relevance.former import former_score
from benchmarks.relevance.labelled import Item, read_domain

DOMAINS: Final = ("modelling", "operations", "fieldwork")
MINIMUM: Final = 0.3
"""The min_relevance of the documentation."""
RECENT: Final = 20
EVERY: Final = timedelta(seconds=30)
SEEDS: Final = range(5)
_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
_ME = UUID(int=7)


@dataclass(slots=True)
class Judged:
    """The scores of the items, of all orders together."""

    scores: list[tuple[Item, float]] = field(default_factory=list)

    def auc(self, what: str = "all") -> float:
        """Return the area under the ROC curve for positives that share a word with the focus, for others, or all."""
        positive = [score for item, score in self.scores if item.is_positive and _is_in(item, what)]
        negative = [score for item, score in self.scores if not item.is_positive]
        return area(positive, negative)

    def share_taken(self, *, is_positive: bool) -> float:
        """Return the share of positives, or of negatives, at or above the documented minimum."""
        chosen = [score >= MINIMUM for item, score in self.scores if item.is_positive is is_positive]
        return sum(chosen) / len(chosen)


def judge(domain: str, *, is_former: bool = False) -> Judged:
    """Score a domain's items in five random orders."""
    focus, items = read_domain(domain)
    judged = Judged()
    for seed in SEEDS:
        ordered = random.Random(seed).sample(items, len(items))
        judged.scores += _played(focus, ordered, is_former=is_former)
    return judged


def area(positive: list[float], negative: list[float]) -> float:
    """Return the chance that a positive scores above a negative; equal scores count half."""
    wins = sum((one > other) + 0.5 * (one == other) for one in positive for other in negative)
    return wins / (len(positive) * len(negative))


def _played(focus: tuple[str, ...], items: list[Item], *, is_former: bool) -> list[tuple[Item, float]]:
    taken: list[tuple[str, datetime]] = []
    scores = []
    for number, item in enumerate(items):
        content, now = _idea(item.text, number), _NOON + number * EVERY
        score = _former(content, focus, taken, now) if is_former else _score(content, focus, taken, now)
        scores.append((item, score))
        if is_former or score >= MINIMUM:  # the former score let everything into the history
            taken = [*taken, (content, now)][-RECENT:]
    return scores


def _score(content: str, focus: tuple[str, ...], taken: list[tuple[str, datetime]], now: datetime) -> float:
    settings = RelevanceSettings(_env_file=None)
    context = AgentContext.model_validate(
        {
            "context_id": _ME,
            "session_id": _ME,
            "timestamp_utc": now,
            "target_agent_id": _ME,
            "narrative_state": {"symbolic_focus": focus},
            "interaction_history": {
                "recent_messages": [{"content": one, "timestamp_utc": moment} for one, moment in taken]
            },
        }
    )
    message = ContextMessage(content=content, metadata={"targets": [str(_ME)]})
    return resonance(message, context, settings).score(settings)


def _former(content: str, focus: tuple[str, ...], taken: list[tuple[str, datetime]], now: datetime) -> float:
    recent = [(one, 0.5 ** ((now - moment) / timedelta(seconds=600))) for one, moment in taken]
    return former_score(content, focus, recent)


def _idea(text: str, number: int) -> str:
    """Return an IDEA as it stands in a conversation."""
    document = {"method_id": f"m-{number}", "intent": text, "assumptions": [], "required_capabilities": []}
    return orjson.dumps(document | {"expected_impact": {"quality_gain": 0.1}, "failure_modes": []}).decode()


def _is_in(item: Item, what: str) -> bool:
    return what == "all" or item.shares == (what == "sharing")

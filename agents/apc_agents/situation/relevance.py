"""The Symbolic Resonance Score: how much a message concerns an agent in its situation.

Source: Agent Context Protocol 1.1 section 5; agents.md section 2. The formula is ours (docs/agent-context.md).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import Final

from pydantic import JsonValue

from apc_bus.settings import RelevanceSettings
from apc_contracts.context import AgentContext, ContextMessage

_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Resonance:
    """The parts of a score, each in 0..1; what a context does not tell counts 0."""

    symbols: float = 0.0
    archetype: float = 0.0
    fingerprint: float = 0.0
    history: float = 0.0
    directive: float = 0.0

    def score(self, weights: RelevanceSettings) -> float:
        """The weighted mean, in 0..1; no part can lower it by growing."""
        shares = (weights.symbols, weights.archetype, weights.fingerprint, weights.history, weights.directive)
        total = sum(shares)
        if total == 0:
            return 0.0
        parts: tuple[float, ...] = astuple(self)
        return min(1.0, sum(share * part for share, part in zip(shares, parts, strict=True)) / total)


def resonance(message: ContextMessage, context: AgentContext, settings: RelevanceSettings) -> Resonance:
    """The parts of a message's score.

    Its symbols are `metadata.symbolic_keys`, or its words where it has none; compared without case.
    """
    metadata = message.metadata or {}
    symbols = _texts(metadata.get("symbolic_keys")) or words_of(message.content)
    return Resonance(
        symbols=_symbols(symbols, context),
        archetype=_archetype(_texts(metadata.get("archetypes")) | symbols, context),
        fingerprint=_fingerprint(symbols, context),
        history=_history(message, context, settings.half_life_seconds),
        directive=_directive(metadata, context),
    )


def similarity(one: str | None, other: str | None) -> float:
    """Common words over all words (Jaccard), 0..1."""
    left, right = words_of(one), words_of(other)
    return len(left & right) / len(left | right) if left | right else 0.0


def words_of(text: str | None) -> frozenset[str]:
    """The distinct words, without case."""
    return frozenset(_WORD.findall((text or "").casefold()))


def _symbols(symbols: frozenset[str], context: AgentContext) -> float:
    """The share of the symbolic focus that the message touches."""
    narrative = context.narrative_state
    focus = _texts(list(narrative.symbolic_focus)) if narrative and narrative.symbolic_focus else frozenset()
    return len(focus & symbols) / len(focus) if focus else 0.0


def _archetype(names: frozenset[str], context: AgentContext) -> float:
    """1 for the primary archetype, 0.5 for the secondary one, times the alignment's strength."""
    alignment = context.user_profile.archetypal_alignment if context.user_profile else None
    if alignment is None or alignment.alignment_strength is None:
        return 0.0
    if (alignment.primary_archetype or "").casefold() in names:
        return alignment.alignment_strength
    return 0.5 * alignment.alignment_strength if (alignment.secondary_archetype or "").casefold() in names else 0.0


def _fingerprint(symbols: frozenset[str], context: AgentContext) -> float:
    """The strongest number that the fingerprint's summary gives to one of the symbols."""
    summary = (context.user_profile.resonance_fingerprint_summary if context.user_profile else None) or {}
    strengths = (
        float(value)
        for key, value in summary.items()
        if key.casefold() in symbols and isinstance(value, int | float) and not isinstance(value, bool)
    )
    return max((min(1.0, max(0.0, value)) for value in strengths), default=0.0)


def _history(message: ContextMessage, context: AgentContext, half_life: float) -> float:
    """The largest similarity to a recent message, halved with each half-life of its age."""
    history = context.interaction_history
    recent = (history.recent_messages if history else None) or ()
    found = (
        similarity(message.content, one.content) * 0.5 ** (_age(one.timestamp_utc, context.timestamp_utc) / half_life)
        for one in recent
    )
    return max(found, default=0.0)


def _age(then: datetime | None, now: datetime) -> float:
    return max(0.0, (now - (then or datetime.min.replace(tzinfo=UTC))).total_seconds())


def _directive(metadata: Mapping[str, JsonValue], context: AgentContext) -> float:
    """A half for being meant, a half for asking what the message is about."""
    target = context.target_agent_id is not None and str(context.target_agent_id) in _texts(metadata.get("targets"))
    directives = context.processing_directives
    asked = directives.requested_action if directives else None
    return 0.5 * target + 0.5 * (asked is not None and asked == metadata.get("action"))


def _texts(value: JsonValue) -> frozenset[str]:
    found: Iterable[JsonValue] = value if isinstance(value, list | tuple) else ()
    return frozenset(one.casefold() for one in found if isinstance(one, str))

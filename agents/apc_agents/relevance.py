"""Words that say nothing of what an English text is about: they weigh nothing in a comparison."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from functools import cache
from math import log
from typing import Any, Final

import orjson
from pydantic import JsonValue

from apc_agents.text import stemmer_of
from apc_bus.settings import RelevanceSettings
from apc_contracts.agent import AgentContext, ContextMessage

_ENGLISH: Final = """
a about above after again against all almost along already also although always am among an and another any anybody
anything are around as ask at away back be became because become been before began begin behind being below beside
best better between big both bring but buy by call came can cannot come could day did different do does done down
during each early either else end enough even ever every everybody everything far few find first five for forty found
four from full gave get give go good got great had half has have he her here hers him his hold hour how hundred i if
in into is it its just keep kept know last late later least leave left less let like little long look lost made make
man many may me mean measure might mine minute month more morning most move much must my near need never new next nine
no nobody none nor not nothing now of off often old on once one only open or other our out over own part people place
please put quite reach read really right said same saw say second see seem seven several she should show since six
small so some somebody something soon still stop such take tell ten than that the their them then there these they
thing think third this those though thousand three through time to today together tomorrow too took toward turn twenty
two under until up upon us use very wait want was way we week well went were what when where whether which while who
whole why will with within without word work would write year yes yesterday yet you your
"""


@cache
def common_stems(language: str) -> frozenset[str]:
    """Return the stems of the common words of a language; none where there is no list."""
    return stemmer_of(language).stems(_ENGLISH) if language == "english" else frozenset()


# The Symbolic Resonance Score: how much a message concerns an agent in its situation.
#
# Source: docs/reference/conformance/agent-context.md section 5; docs/specification/agents.md section 2. The formula is
# ours (docs/reference/agent-context.md).

MISS: Final = 0.4
"""What each symbol of the focus that a message touches leaves of its distance."""
_WORD: Final = re.compile(r"\w+")
_OPAQUE: Final = re.compile(r"\b(?:sha256:)?[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,12})*\b")
"""Ids and digests."""


@dataclass(frozen=True, slots=True)
class Resonance:
    """The parts of a score, each in 0..1; what a context does not tell counts 0."""

    symbols: float = 0.0
    archetype: float = 0.0
    fingerprint: float = 0.0
    history: float = 0.0
    directive: float = 0.0

    def score(self, weights: RelevanceSettings) -> float:
        """Return the weighted mean, in 0..1; no part can lower it by growing."""
        shares = (weights.symbols, weights.archetype, weights.fingerprint, weights.history, weights.directive)
        total = sum(shares)
        if total == 0:
            return 0.0
        parts: tuple[float, ...] = astuple(self)
        return min(1.0, sum(share * part for share, part in zip(shares, parts, strict=True)) / total)


def resonance(
    message: ContextMessage,
    context: AgentContext,
    settings: RelevanceSettings,
    *,
    language: str = "english",
    actions: Collection[str] = (),
) -> Resonance:
    """Return the parts of a message's score.

    Its symbols are `metadata.symbolic_keys` and the words of its texts, compared by their stems.

    Args:
        language: of the stems, as APC_LANGUAGE.
        actions: what the agent can do: its tools and capabilities.
    """
    metadata = message.metadata or {}
    keys = _texts(metadata.get("symbolic_keys"))
    texts = texts_of(message.content)
    stems = frozenset[str]().union(*(stems_of(text, language) for text in (*keys, *texts)))
    return Resonance(
        symbols=_symbols(stems, context, language),
        archetype=_archetype(_texts(metadata.get("archetypes")) | keys | distinct_words(" ".join(texts)), context),
        fingerprint=_fingerprint(keys | distinct_words(" ".join(texts)), context),
        history=_history(stems, context, settings.half_life_seconds, language),
        directive=_directive(metadata, context, actions),
    )


def texts_of(content: str | None) -> list[str]:
    """Return what a message says: the texts in the fields of a JSON document without the names of the fields."""
    if not content:
        return []
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError:
        return [content]
    return list(_leaves(document)) if isinstance(document, dict | list) else [content]


def stems_of(text: str, language: str) -> frozenset[str]:
    """Return the stems of a text that say what it is about: no common words, ids, digests or numbers."""
    stems = stemmer_of(language).stems(_OPAQUE.sub(" ", text)) - common_stems(language)
    return frozenset(stem for stem in stems if not stem.isdigit())


def similarity(one: str | None, other: str | None, language: str = "english") -> float:
    """Return the common stems over all stems of two messages (Jaccard), 0..1."""
    left, right = (
        frozenset[str]().union(*(stems_of(text, language) for text in texts_of(content))) for content in (one, other)
    )
    return len(left & right) / len(left | right) if left | right else 0.0


def distinct_words(text: str | None) -> frozenset[str]:
    """Return the distinct words, without case."""
    return frozenset(_WORD.findall((text or "").casefold()))


def _leaves(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict | list):
        for one in document.values() if isinstance(document, dict) else document:
            yield from _leaves(one)


def _symbols(stems: frozenset[str], context: AgentContext, language: str) -> float:
    """Return 1 - 0.4^n for n symbols of the focus in the message; a phrase counts by the share of its words."""
    narrative = context.narrative_state
    focus = _texts(list(narrative.symbolic_focus)) if narrative and narrative.symbolic_focus else frozenset()
    touched: float = 0.0
    for symbol in focus:
        wanted = stems_of(symbol, language) or stemmer_of(language).stems(symbol)
        touched += len(wanted & stems) / len(wanted) if wanted else 0.0
    return 1.0 - float(MISS**touched)


def _archetype(names: frozenset[str], context: AgentContext) -> float:
    """Return 1 for the primary archetype, 0.5 for the secondary one, times the strength of the alignment."""
    alignment = context.user_profile.archetypal_alignment if context.user_profile else None
    if alignment is None or alignment.alignment_strength is None:
        return 0.0
    if (alignment.primary_archetype or "").casefold() in names:
        return alignment.alignment_strength
    return 0.5 * alignment.alignment_strength if (alignment.secondary_archetype or "").casefold() in names else 0.0


def _fingerprint(symbols: frozenset[str], context: AgentContext) -> float:
    """Return the strongest number that the fingerprint's summary gives to one of the symbols."""
    summary = (context.user_profile.resonance_fingerprint_summary if context.user_profile else None) or {}
    strengths = (
        float(value)
        for key, value in summary.items()
        if key.casefold() in symbols and isinstance(value, int | float) and not isinstance(value, bool)
    )
    return max((min(1.0, max(0.0, value)) for value in strengths), default=0.0)


def _history(stems: frozenset[str], context: AgentContext, half_life: float, language: str) -> float:
    """Return the share of the message's stems that recent messages have, rare ones weighing more, halved by age."""
    history = context.interaction_history
    recent = (history.recent_messages if history else None) or ()
    heard, count = dict[str, float](), Counter[str]()
    for message in recent:
        fresh = 0.5 ** (_age(message.timestamp_utc, context.timestamp_utc) / half_life)
        for stem in frozenset[str]().union(*(stems_of(text, language) for text in texts_of(message.content))):
            heard[stem] = max(heard.get(stem, 0.0), fresh)
            count[stem] += 1
    weights = {stem: log(1 + (len(recent) + 1) / (count[stem] + 1)) for stem in stems}
    total = sum(weights.values())
    return min(1.0, sum(weight * heard.get(stem, 0.0) for stem, weight in weights.items()) / total) if total else 0.0


def _age(then: datetime | None, now: datetime) -> float:
    return max(0.0, (now - (then or datetime.min.replace(tzinfo=UTC))).total_seconds())


def _directive(metadata: Mapping[str, JsonValue], context: AgentContext, actions: Collection[str]) -> float:
    """Return a half for being meant, and a half for being asked to do what the agent can do."""
    target = context.target_agent_id is not None and str(context.target_agent_id) in _texts(metadata.get("targets"))
    directives = context.processing_directives
    asked = directives.requested_action if directives else None
    can = asked is not None and _action(asked) in {_action(one) for one in actions}
    return 0.5 * target + 0.5 * can


def _action(name: str) -> str:
    return name.casefold().replace("-", "_").replace(" ", "_")


def _texts(value: JsonValue) -> frozenset[str]:
    values: Iterable[JsonValue] = value if isinstance(value, list | tuple) else ()
    return frozenset(one.casefold() for one in values if isinstance(one, str))

"""The search of conversations: the same in every store, so that the same search finds the same ones in the same order.

Postgres sees the words of a conversation only and says which ones may match; here is judged which do, and how well.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from apc_agents.memory.conversation import ConversationContext
from apc_agents.memory.query import Query, Term
from apc_agents.text.word_stems import Stemmer, words_in

MAX_WORDS_BYTES: Final = 900_000
"""A tsvector holds 1 MiB. What a conversation has beyond that is not found; its newest messages come first."""
EXCERPT_LENGTH: Final = 160
SUMMARY_WEIGHT: Final = 2.0
"""A word of the summary counts as much as two messages that have it."""


@dataclass(frozen=True, slots=True)
class Hit:
    """How well a conversation matches, and where."""

    rank: float
    excerpt: str


@dataclass(frozen=True, slots=True)
class _Text:
    content: str
    words: tuple[tuple[str, int, int], ...]
    stems: tuple[str, ...]
    weight: float = 1.0

    def places(self, term: Term) -> Iterator[tuple[int, int]]:
        """Yield where the term stands."""
        length = len(term.stems)
        for start in range(len(self.stems) - length + 1):
            if self.stems[start : start + length - 1] != term.stems[:-1]:
                continue
            last = start + length - 1
            fits = self.words[last][0].startswith(term.words[-1]) if term.is_prefix else self._same(last, term)
            if fits:
                yield self.words[start][1], self.words[last][2]

    def _same(self, place: int, term: Term) -> bool:
        return self.stems[place] == term.stems[-1]


def words_of(conversation: ConversationContext) -> list[str]:
    """Return the distinct words of a conversation's messages and summary, newest message first."""
    found: dict[str, None] = {}
    size = 0
    for content in _contents(conversation):
        for word, _, _ in words_in(content):
            if word not in found:
                # Beside its bytes a lexeme costs an entry of 4 and its alignment.
                size += len(word.encode()) + 8
                if size > MAX_WORDS_BYTES:
                    return list(found)
                found[word] = None
    return list(found)


def find_hit(conversation: ConversationContext, query: Query, stemmer: Stemmer) -> Hit | None:
    """Return how well a conversation matches; None when it does not."""
    known = frozenset(words_of(conversation))
    texts = [_text(content, stemmer, known) for content in _contents(conversation)]
    if conversation.summary:
        texts[0] = _Text(texts[0].content, texts[0].words, texts[0].stems, SUMMARY_WEIGHT)
    if not any(_holds(terms, texts) for terms in query.alternatives):
        return None
    rank = 0.0
    for term in dict.fromkeys(query.wanted):
        count = sum(text.weight for text in texts for _ in text.places(term))
        rank += count / (count + 1)
    return Hit(round(rank, 6), _excerpt(texts, query.wanted))


def ranked(hits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the best first; those that match equally well as they came."""
    return sorted(hits, key=lambda hit: -hit["rank"])


def _contents(conversation: ConversationContext) -> Iterator[str]:
    yield conversation.summary or ""
    for message in reversed(conversation.messages):
        yield message.content


def _text(content: str, stemmer: Stemmer, known: frozenset[str]) -> _Text:
    words = tuple(found for found in words_in(content) if found[0] in known)
    return _Text(content, words, tuple(stemmer.stem(word) for word, _, _ in words))


def _holds(terms: Iterable[Term], texts: list[_Text]) -> bool:
    return all(any(True for text in texts for _ in text.places(term)) is not term.is_excluded for term in terms)


def _excerpt(texts: list[_Text], wanted: tuple[Term, ...]) -> str:
    """Return the part of the text with the most different terms around the first of them; of equal ones the newest."""
    best, found = texts[0], list[tuple[int, int]]()
    most = 0
    for text in texts:
        places = [place for term in wanted for place in list(text.places(term))[:1]]
        if len(places) > most:
            best, found, most = text, places, len(places)
    start = max(0, min((first for first, _ in found), default=0) - EXCERPT_LENGTH // 3)
    end = start + EXCERPT_LENGTH
    shown = " ".join(best.content[start:end].split())
    return f"{'…' if start else ''}{shown}{'…' if end < len(best.content) else ''}"

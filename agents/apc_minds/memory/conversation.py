"""The conversations of a memory: what is checked of them, their parts, and their search.

Source: docs/reference/conformance/memory.md section 4.1; docs/reference/conformance/agent-context.md section 6.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from apc_agents.errors import ConversationInvalid, MemoryArgumentInvalid
from apc_agents.ports import ConversationContext, ConversationMessage, checked_id
from apc_minds.text import Stemmer, fold, words_in


def merged(parts: Sequence[ConversationContext]) -> ConversationContext:
    """Return the parts of one conversation as a whole: each message once, in the order of their times.

    A part is what one agent heard and said. The revision of the whole is the sum of theirs. What the first part says
    stands: another with the same message_id and other words is a message beside it.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    known: dict[Any, ConversationMessage] = {}
    for message in (message for part in parts for message in part.messages):
        key = (message.metadata.get("message_id", id(message)), message.role, message.content)
        known.setdefault(key, message)
    metadata: dict[str, Any] = {}
    for part in (*parts[1:], first):
        metadata |= part.metadata
    dropped = sum(int(part.metadata.get("dropped", 0)) for part in parts)
    return first.model_copy(
        update={
            "messages": tuple(sorted(known.values(), key=lambda message: message.timestamp)),
            "metadata": {**metadata, "dropped": dropped} if dropped else metadata,
            "agent_participants": tuple(dict.fromkeys(name for part in parts for name in part.agent_participants)),
            "revision": sum(part.revision or 0 for part in parts),
        }
    )


MAX_PAGE: Final = 1_000


def check_conversation(session_id: str, user_id: str, conversation: ConversationContext) -> None:
    """Check what is to be saved. Raises ArgumentInvalid, ConversationInvalid."""
    checked_id("session_id", session_id)
    checked_id("user_id", user_id)
    if not isinstance(conversation, ConversationContext):
        raise ConversationInvalid("$", f"it is {type(conversation).__name__}: give a ConversationContext")
    if conversation.session_id != session_id:
        raise ConversationInvalid("session_id", f"it is {conversation.session_id!r}, and this is {session_id!r}")


def state_place(agent_id: str, owner_id: str, key: str) -> tuple[str, str, str]:
    """Return the primary key of an agent state. Raises ArgumentInvalid."""
    return checked_id("agent_id", agent_id), checked_id("owner_id", owner_id), checked_id("key", key)


def check_page(limit: int, offset: int) -> None:
    """Check the page that is asked for. Raises ArgumentInvalid."""
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise MemoryArgumentInvalid("limit", f"{limit!r} is no number in 1..{MAX_PAGE}: ask for the rest with offset")
    if type(offset) is not int or not 0 <= offset < 2**31:
        raise MemoryArgumentInvalid("offset", f"{offset!r} is no number in 0..2^31 - 1")


def check_timestamp(moment: datetime) -> None:
    """Check that a time has an offset from UTC. Raises ArgumentInvalid."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise MemoryArgumentInvalid("moment", f"{moment!r} is no time with an offset from UTC: give one")


# What is searched for: words, "phrases", OR, -without, and pre* for all that begins so.

MAX_QUERY_WORDS: Final = 20
_TERM: Final = re.compile(r'(?P<minus>-)?(?:"(?P<phrase>[^"]*)"?|(?P<word>[^\s"]+))')
_OR: Final = "OR"


@dataclass(frozen=True, slots=True)
class Term:
    """Words that follow each other; the last one may stand for all that begin so."""

    words: tuple[str, ...]
    stems: tuple[str, ...]
    is_prefix: bool = False
    is_excluded: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """Alternatives; each holds for a conversation that has all of its terms, the excluded ones aside."""

    alternatives: tuple[tuple[Term, ...], ...]

    @property
    def wanted(self) -> tuple[Term, ...]:
        """Every term that is not excluded."""
        return tuple(term for terms in self.alternatives for term in terms if not term.is_excluded)

    def to_tsquery(self) -> str:
        """Return a tsquery that every match fulfils; phrases and stems are judged afterwards."""
        alternatives = []
        for terms in self.alternatives:
            lexemes = [
                _lexeme(word, stem, is_prefix=term.is_prefix and number == len(term.words))
                for term in terms
                if not term.is_excluded
                for number, (word, stem) in enumerate(zip(term.words, term.stems, strict=True), start=1)
            ]
            alternatives.append("(" + " & ".join(lexemes) + ")")
        return " | ".join(alternatives)


def parse_query(text: str, stemmer: Stemmer) -> Query:
    """Return the query of a text.

    Raises:
        ArgumentInvalid: no word, more than 20, or an alternative that only excludes.
    """
    alternatives: list[list[Term]] = [[]]
    for match in _TERM.finditer(text):
        if match["word"] == _OR and not match["minus"]:
            alternatives.append([])
        elif (term := _term(match, stemmer)) is not None:
            alternatives[-1].append(term)
    chosen = tuple(tuple(terms) for terms in alternatives if terms)
    count = sum(len(term.words) for terms in chosen for term in terms)
    if not 0 < count <= MAX_QUERY_WORDS:
        raise MemoryArgumentInvalid("query", f"it has {count} words: 1 to {MAX_QUERY_WORDS} are needed")
    if any(all(term.is_excluded for term in terms) for terms in chosen):
        raise MemoryArgumentInvalid("query", "it only excludes: name a word that must be there, too")
    return Query(chosen)


def _term(match: re.Match[str], stemmer: Stemmer) -> Term | None:
    given = match["word"] if match["phrase"] is None else match["phrase"]
    is_prefix = match["phrase"] is None and given.endswith("*")
    words = tuple(word for word, _, _ in words_in(given))
    if not words:
        return None
    return Term(words, tuple(map(stemmer.stem, words)), is_prefix, bool(match["minus"]))


def _lexeme(word: str, stem: str, *, is_prefix: bool) -> str:
    """Return the lexeme that finds the word, or the beginning that all words of its stem have."""
    if is_prefix:
        return f"{_quoted(word)}:*"
    if stem == word and not word.isalpha():
        return _quoted(word)
    common = next((place for place in range(min(len(word), len(stem))) if word[place] != stem[place]), len(stem))
    kept = common - 1 if common > 3 else common
    return f"{_quoted(fold(word)[:kept] or word[:1])}:*"


def _quoted(word: str) -> str:
    return "'" + word.replace("\\", "").replace("'", "''") + "'"


# The search of conversations: the same in every store, so that the same search finds the same ones in the same order.
#
# Postgres sees the words of a conversation only and says which ones may match; here is judged which do, and how well.

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
    words: dict[str, None] = {}
    size = 0
    for content in _contents(conversation):
        for word, _, _ in words_in(content):
            if word not in words:
                # Beside its bytes a lexeme costs an entry of 4 and its alignment.
                size += len(word.encode()) + 8
                if size > MAX_WORDS_BYTES:
                    return list(words)
                words[word] = None
    return list(words)


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

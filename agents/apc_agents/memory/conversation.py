"""What the memory of agents keeps, and its errors: JSON values, and conversations with their search.

Source: docs/reference/conformance/memory.md section 4.1; docs/reference/conformance/agent-context.md section 6.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import orjson
from pydantic import Field, ValidationError

from apc_agents.errors import AgentError
from apc_agents.json_values import checked_text, json_value
from apc_agents.text import Stemmer, fold, words_in
from apc_bus.settings import SituationSettings
from apc_contracts.contract_model import Model, Time


class MemoryStoreError(AgentError):
    """A memory store cannot do what it is asked to.

    AgentError
      MemoryStoreError
        ValueInvalid         (path): a value that JSON does not know, or that is too large
        ConversationInvalid  (path): a conversation that cannot be stored, or a stored one that cannot be read
        MemoryArgumentInvalid  (place): a page, a moment or an id outside its range
        OwnerForeign         what is written belongs to another owner, or to another user
        StaleRevision        (revision, current): somebody else has written it since it was read
        UnknownSession       (session_id): nobody began this session
        MemoryUnavailable    the database does not answer

    Whatever raises one of them leaves the memory as it was.
    """


class ValueInvalid(MemoryStoreError):
    """A value that JSON does not know, or that is too large; `path` leads to it (`$` = the whole)."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"value refused at {path}: {message}")
        self.path = path


class ConversationInvalid(MemoryStoreError):
    """A conversation that cannot be stored, or a stored one that cannot be read; `path` leads to the field."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"conversation refused at {path}: {message}")
        self.path = path


class MemoryArgumentInvalid(MemoryStoreError):
    """An argument outside its range; `place` names it."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place = place


class OwnerForeign(MemoryStoreError):
    """What is written belongs to another owner, or to another user."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} belongs to somebody else: use another id, or the store of its owner")


class StaleRevision(MemoryStoreError):
    """Somebody else has written it since it was read; `current` is 0 when there is none."""

    def __init__(self, what: str, revision: int, current: int) -> None:
        super().__init__(f"{what} has revision {current}, not {revision}: read it again")
        self.revision = revision
        self.current = current


class UnknownSession(MemoryStoreError):
    """Nobody began this session."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"unknown session {session_id!r}: begin it first, or check its id")
        self.session_id = session_id


class MemoryUnavailable(MemoryStoreError):
    """The database does not answer."""


# What may be stored: JSON, and nothing that JSONB would change or refuse.
#
# Pickle is not supported: anyone who may write a pickled value may run code wherever it is read.

MAX_VALUE_BYTES: Final = 16 * 1024 * 1024
MAX_ID_BYTES: Final = 512
"""Of a session, user, agent, owner or key: three of them stand in one index row, which takes 2.7 kB."""


def encoded(value: Any, path: str = "$") -> bytes:
    """Return the value as JSON with sorted keys.

    Raises:
        ValueInvalid: it holds something that is not JSON, or that PostgreSQL does not keep (apc_agents.json_values);
            or it has more than 16 MiB.
    """
    document = orjson.dumps(json_value(value, path, ValueInvalid), option=orjson.OPT_SORT_KEYS)
    if len(document) > MAX_VALUE_BYTES:
        raise ValueInvalid(path, f"it has {len(document)} bytes and {MAX_VALUE_BYTES} fit: store it as an artifact")
    return document


def checked_id(place: str, value: str) -> str:
    """Return an id of a session, user, agent, owner or key. Raises ArgumentInvalid."""
    checked_text(value, place, MemoryArgumentInvalid)
    if not 0 < len(value.encode()) <= MAX_ID_BYTES:
        raise MemoryArgumentInvalid(place, f"it has {len(value.encode())} bytes: 1 to {MAX_ID_BYTES} are needed")
    return value


def state_name(agent_id: str, owner_id: str, key: str) -> str:
    """Return an agent state, for a message."""
    return f"state {key} of agent {agent_id} for {owner_id}"


CONVERSATION_VERSION: Final = "1.0"
"""Of the schema below; column `version` of the Agent Memory Protocol."""
MAX_MESSAGE_BYTES: Final = 256 * 1024
"""Of one message's text, in UTF-8: as much as a packet holds."""
MAX_SUMMARY_LENGTH: Final = 500
"""Characters of a summary in a listing."""


MADE_BY: Final = "made_by"
"""In the metadata of a message that the reader's login did not write: the agent whose login did."""


class ConversationMessage(Model):
    """One message. `metadata` is any JSON; `sender_id` in it says who spoke, beyond the role."""

    role: str
    content: str
    timestamp: Time
    metadata: Mapping[str, Any] = {}


class ConversationContext(Model):
    """The messages of one session, a value: what changes it gives a new one.

    `revision` is None for an upsert; a number for compare-and-set: what the store holds must have it (0 = nothing is
    there yet), and has the next number afterwards. It is no part of the stored document.
    """

    session_id: str = Field(min_length=1)
    messages: tuple[ConversationMessage, ...] = ()
    metadata: Mapping[str, Any] = {}
    agent_participants: tuple[str, ...] = ()
    version: Literal["1.0"] = CONVERSATION_VERSION
    revision: int | None = Field(default=None, ge=0, exclude=True)

    def written_by(self, login: str) -> Self:
        """Return the conversation with each message marked as that of another login, agent.<agent_id>."""
        marked = (
            message.model_copy(update={"metadata": {**message.metadata, MADE_BY: login}}) for message in self.messages
        )
        return self.model_copy(update={"messages": tuple(marked)})

    @property
    def own(self) -> Self:
        """The conversation without what other logins of the database have added."""
        kept = tuple(message for message in self.messages if MADE_BY not in message.metadata)
        return self if len(kept) == len(self.messages) else self.model_copy(update={"messages": kept})

    def with_message(self, message: ConversationMessage, participant: str | None = None) -> Self:
        """Return the conversation with one more message, and with this agent among the participants."""
        grown = self.model_copy(update={"messages": (*self.messages, message)})
        return grown if participant is None else grown.with_participant(participant)

    def with_participant(self, participant: str) -> Self:
        """Return the conversation with this agent among the participants."""
        if participant in self.agent_participants:
            return self
        return self.model_copy(update={"agent_participants": (*self.agent_participants, participant)})

    def shortened(self, kept_messages: int, kept_bytes: int) -> Self:
        """Return it without the oldest messages that are too many; `metadata.dropped` counts them."""
        messages, size = list[ConversationMessage](), 0
        for message in reversed(self.messages[-kept_messages:]):
            size += len(message.content.encode())
            if messages and size > kept_bytes:
                break
            messages.append(message)
        gone = len(self.messages) - len(messages)
        if not gone:
            return self
        dropped = int(self.metadata.get("dropped", 0)) + gone
        return self.model_copy(
            update={"messages": tuple(messages[::-1]), "metadata": {**self.metadata, "dropped": dropped}}
        )

    @property
    def summary(self) -> str | None:
        """`metadata.summary`, if it is text: what a listing shows."""
        summary = self.metadata.get("summary")
        return summary[:MAX_SUMMARY_LENGTH] if isinstance(summary, str) else None

    def to_document(self) -> dict[str, Any]:
        """Return JSON: session_id, messages, metadata, agent_participants, version."""
        messages = [
            {
                "role": message.role,
                "content": message.content,
                "timestamp": message.timestamp.isoformat(),
                "metadata": dict(message.metadata),
            }
            for message in self.messages
        ]
        return {
            "session_id": self.session_id,
            "messages": messages,
            "metadata": dict(self.metadata),
            "agent_participants": list(self.agent_participants),
            "version": self.version,
        }

    def to_bytes(self) -> bytes:
        """Return the document as JSON. Raises ValueInvalid, and ConversationInvalid for a message that is too long."""
        for number, message in enumerate(self.messages):
            place = f"messages[{number}]"
            checked_text(message.content, f"{place}.content", ValueInvalid)
            if (size := len(message.content.encode())) > MAX_MESSAGE_BYTES:
                raise ConversationInvalid(
                    f"{place}.content", f"it has {size} bytes and {MAX_MESSAGE_BYTES} fit: shorten it, or send parts"
                )
        try:
            return encoded(self.to_document(), "")
        except ValueInvalid as error:
            raise ValueInvalid(error.path.lstrip(".") or "$", str(error).partition(": ")[2]) from None

    @classmethod
    def from_document(cls, document: Any, revision: int | None = None) -> Self:
        """Return a conversation from its document. Raises ConversationInvalid with the path of what does not fit."""
        try:
            return cls.model_validate(document).model_copy(update={"revision": revision})
        except ValidationError as invalid:
            first = invalid.errors(include_url=False)[0]
            path = ".".join(str(part) for part in first["loc"]) or "$"
            raise ConversationInvalid(path, f"{first['msg']}, and this is schema {CONVERSATION_VERSION}") from None


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


@dataclass(frozen=True, slots=True)
class NewMessages:
    """What was said in a session since its state was saved last.

    `user_id` is whose conversation it is if nobody began it yet; `is_restart` forgets what was said before.
    """

    session_id: str
    user_id: str
    participant: str
    messages: tuple[ConversationMessage, ...] = ()
    is_restart: bool = False

    def added_to(self, kept: ConversationContext | None) -> ConversationContext:
        """Return the conversation with these messages, each once, within the bounds of the settings."""
        checked_id("session_id", self.session_id)
        checked_id("user_id", self.user_id)
        if kept is None:
            kept = ConversationContext(session_id=self.session_id, metadata={"user_id": self.user_id})
        if self.is_restart:
            kept = kept.model_copy(update={"messages": ()})
        known = {message.metadata.get("message_id") for message in kept.messages}
        fresh = (one for one in self.messages if one.metadata.get("message_id") not in known)
        grown = kept.with_participant(self.participant)
        for message in fresh:
            grown = grown.with_message(message)
        settings = SituationSettings()
        return grown.shortened(settings.kept_messages, settings.kept_bytes)


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

"""The words of a conversation: the same in every store, so that the same search finds the same conversations."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from apc_agents.memory.conversation import ConversationContext
from apc_agents.memory.errors import ArgumentInvalid

MAX_WORD_LENGTH: Final = 100
MAX_WORDS_BYTES: Final = 900_000
"""A tsvector holds 1 MiB. What a conversation has beyond that is not found; its newest messages come first."""
MAX_QUERY_WORDS: Final = 20
_WORD: Final = re.compile(r"\w+")


def words_of(conversation: ConversationContext) -> list[str]:
    """The distinct words of a conversation's messages and summary, without case, newest message first."""
    found: dict[str, None] = {}
    size = 0
    texts = (conversation.summary or "", *(message.content for message in reversed(conversation.messages)))
    for text in texts:
        for word in _words(text):
            if word not in found:
                # Beside its bytes a lexeme costs an entry of 4 and its alignment.
                size += len(word.encode()) + 8
                if size > MAX_WORDS_BYTES:
                    return list(found)
                found[word] = None
    return list(found)


def query_words(query: str) -> list[tuple[str, bool]]:
    """The words that must all be there, each with whether it stands for all that begin so (`pum*`).

    Raises:
        ArgumentInvalid: no word, or more than 20.
    """
    words = [
        (match[0].casefold()[:MAX_WORD_LENGTH], query[match.end() :][:1] == "*") for match in _WORD.finditer(query)
    ]
    if not 0 < len(words) <= MAX_QUERY_WORDS:
        raise ArgumentInvalid("query", f"it has {len(words)} words: 1 to {MAX_QUERY_WORDS} are needed")
    return words


def is_match(words: Iterable[str], query: Sequence[tuple[str, bool]]) -> bool:
    """Whether every word of the query is among the words."""
    known = set(words)
    return all(any(one.startswith(word) for one in known) if is_prefix else word in known for word, is_prefix in query)


def _words(text: str) -> Iterable[str]:
    return (match[0].casefold()[:MAX_WORD_LENGTH] for match in _WORD.finditer(text))

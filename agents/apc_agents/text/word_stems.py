"""The words of a text, the same wherever texts are compared: folded, split, and reduced to their stems.

Case and accents are folded, identifiers are split (`maxRetries`, `max_retries` and `max-retries` give the same words,
and the whole as well), texts without spaces between words (Chinese, Japanese, Korean, Thai) give pairs of characters.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

MAX_WORD_LENGTH: Final = 100
_WORD: Final = re.compile(r"\w+")
_PART: Final = re.compile(r"[^\W\d_]+|\d+")
_HUMP: Final = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]+"
)


def fold(text: str) -> str:
    """Return the text without case and accents."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return unicodedata.normalize("NFC", "".join(one for one in decomposed if not unicodedata.combining(one)))


def words_in(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the words of a text in their order, each with the place in the text that it comes from.

    An identifier yields its parts and then the whole.
    """
    for match in _WORD.finditer(unicodedata.normalize("NFC", text)):
        start = match.start()
        for piece in _pieces(match[0]):
            yield piece[:MAX_WORD_LENGTH], start, match.end()


def _pieces(token: str) -> Iterator[str]:
    if _UNSPACED.search(token):
        yield from _mixed(token)
        return
    parts = [fold(part) for whole in _PART.findall(token) for part in _HUMP.split(whole)]
    if len(parts) > 1:
        yield from parts
    yield fold("".join(_PART.findall(token))) or fold(token)


def _mixed(token: str) -> Iterator[str]:
    """Yield pairs of characters where words are not spaced, and ordinary words between them."""
    end = 0
    for match in _UNSPACED.finditer(token):
        if match.start() > end:
            yield from _pieces(token[end : match.start()])
        yield from _pairs(fold(match[0]))
        end = match.end()
    if end < len(token):
        yield from _pieces(token[end:])


def _pairs(text: str) -> Iterator[str]:
    if len(text) == 1:
        yield text
    for place in range(len(text) - 1):
        yield text[place : place + 2]


def _stemmer_of(language: str) -> Any:
    if language == "none":
        return None
    import snowballstemmer  # all of its languages: only who stems pays for them

    return snowballstemmer.stemmer(language)


class Stemmer:
    """Reduces words to their stems; `none` leaves them as they are."""

    def __init__(self, language: str = "none") -> None:
        self._stemmer = _stemmer_of(language)
        self._known: dict[str, str] = {}

    def stem(self, word: str) -> str:
        """Return the stem of a folded word."""
        if self._stemmer is None:
            return word
        found = self._known.get(word)
        if found is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            found = self._known[word] = str(self._stemmer.stemWord(word))
        return found

    def stems(self, text: str) -> frozenset[str]:
        """Return the distinct stems of a text."""
        return frozenset(self.stem(word) for word, _, _ in words_in(text))


MAX_KNOWN: Final = 50_000
"""Stems that one stemmer remembers."""


@cache
def stemmer_of(language: str) -> Stemmer:
    """Return the stemmer of a language, one for the process."""
    return Stemmer(language)

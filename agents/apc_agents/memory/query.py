"""What is searched for: words, "phrases", OR, -without, and pre* for all that begins so."""

import re
from dataclasses import dataclass
from typing import Final

from apc_agents.memory.errors import MemoryArgumentInvalid
from apc_agents.text.word_stems import Stemmer, fold, words_in

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

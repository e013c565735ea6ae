"""The score of version 1.0, kept to be compared with: words of the whole JSON document, keys included."""

import re

WORD = re.compile(r"\w+")


def former_score(content: str, focus: tuple[str, ...], recent: list[tuple[str, float]]) -> float:
    """Return the former score; `recent` has contents with their decay."""
    words = _words(content)
    symbols = len({one.casefold() for one in focus} & words) / len(focus)
    history = max((_jaccard(words, _words(one)) * decay for one, decay in recent), default=0.0)
    return 0.3 * symbols + 0.2 * history + 0.2 * 0.5


def _words(text: str) -> frozenset[str]:
    return frozenset(WORD.findall(text.casefold()))


def _jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    return len(left & right) / len(left | right) if left | right else 0.0

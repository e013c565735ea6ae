"""Shortens the turns that may be summarized: a port, and an extract that needs no model."""

import re
from typing import Final, Protocol

from apc_agents.text.tokens import EstimatedTokens, TokenCounter

_SENTENCE_END: Final = re.compile(r"(?<=[.!?…。])\s+|\n+")
ELLIPSIS: Final = "…"


class Summarizer(Protocol):
    """Gives a shorter text that says the same."""

    async def summarize(self, text: str, max_tokens: int) -> str:
        """Return a summary of at most max_tokens; what is longer is cut by the projector.

        An error leaves the window as it was and reaches the caller that asked for the compression.
        """
        ...


class ExtractiveSummarizer:
    """The opening sentences, and the last one if it fits too: no model, and the same text gives the same summary."""

    def __init__(self, counter: TokenCounter | None = None) -> None:
        self._counter = counter or EstimatedTokens()

    async def summarize(self, text: str, max_tokens: int) -> str:
        """Summarize like `extract`."""
        return self.extract(text, max_tokens)

    def extract(self, text: str, max_tokens: int) -> str:
        """Return whole sentences within max_tokens, joined by spaces; the beginning of the text if none fits."""
        count = self._counter.count
        if count(text) <= max_tokens:
            return text
        sentences = [sentence for sentence in _SENTENCE_END.split(text.strip()) if sentence]
        if len(sentences) < 2 or count(sentences[0]) > max_tokens:
            return cut(text, max_tokens, self._counter)
        first, *middle, last = sentences
        chosen, ending = first, f" {ELLIPSIS} {last}"
        if count(first + ending) > max_tokens:
            ending = ""
        for sentence in (*middle, last):
            if count(f"{chosen} {sentence}{ending}") > max_tokens:
                break
            chosen = f"{chosen} {sentence}"
        if not ending and count(chosen) * 2 < max_tokens:
            # Half of the room would stay empty: better the beginning of a sentence than nothing.
            return cut(" ".join(sentences), max_tokens, self._counter)
        return chosen + ending


def cut(text: str, max_tokens: int, counter: TokenCounter) -> str:
    """Return the longest beginning of a text that has at most max_tokens, an ellipsis included where that fits."""
    if counter.count(text) <= max_tokens:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if counter.count(text[:middle].rstrip() + ELLIPSIS) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return text[:low].rstrip() + ELLIPSIS if low else ""

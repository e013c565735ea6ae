"""How long a text is for a model: a port, and an estimate that needs no vocabulary."""

from typing import Protocol

BYTES_PER_TOKEN = 4


class TokenCounter(Protocol):
    """Counts tokens. The same text always has the same count, the empty text has 0."""

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        ...


class EstimatedTokens:
    """One token for every 4 bytes of UTF-8, rounded up.

    English prose has 4 to 5 bytes a token in today's vocabularies, so the estimate is a little high there; source
    code and texts in other scripts have 2 to 4, so it may be a third too low. The threshold of 0.7 leaves room for
    that. Exact counts need the vocabulary of the model in use, which no tokenizer package brings along: those
    that exist fetch it when they are first used. Give one of them as the TokenCounter where a count must be exact.
    """

    def count(self, text: str) -> int:
        """Return the estimated number of tokens."""
        return -(-len(text.encode()) // BYTES_PER_TOKEN)

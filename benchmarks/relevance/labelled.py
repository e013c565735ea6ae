"""The labelled messages: `+` is on topic, `-` is not; the first line names the agent's capabilities."""

from dataclasses import dataclass
from pathlib import Path

from apc_minds.text import stemmer_of


@dataclass(frozen=True, slots=True)
class Item:
    """One message and its label."""

    text: str
    is_positive: bool
    shares: bool
    """Whether it has a word of the focus, by its stem."""


def read_domain(domain: str) -> tuple[tuple[str, ...], list[Item]]:
    """Return the focus and the items of a domain."""
    first, *lines = (Path(__file__).parent / f"{domain}.txt").read_text(encoding="utf-8").splitlines()
    focus = tuple(word.strip() for word in first.removeprefix("# focus:").split(","))
    stemmer = stemmer_of("english")
    wanted = frozenset[str]().union(*(stemmer.stems(word) for word in focus))
    return focus, [Item(line[2:], line[0] == "+", bool(stemmer.stems(line[2:]) & wanted)) for line in lines]

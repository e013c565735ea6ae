"""The store comonad: values at positions, and a focus among them.

Source: docs/reference/conformance/context-engineering.md, section 2.1 and appendix A.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from apc_agents.context.errors import ArgumentInvalid

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Store(Generic[A]):
    """(Position → A, Position). Positions are 0..last; nothing is computed before it is looked at."""

    peek: Callable[[int], A]
    position: int
    last: int

    def extract(self) -> A:
        """Return the value in focus (W a → a)."""
        return self.peek(self.position)

    def seek(self, position: int) -> "Store[A]":
        """Return the same values, another focus. Raises ArgumentInvalid."""
        return Store(self.peek, checked_position(position, self.last), self.last)

    def map(self, f: Callable[[A], B]) -> "Store[B]":
        """Map a function over every focus: (a → b) → W a → W b."""
        return Store(lambda position: f(self.peek(position)), self.position, self.last)

    def extend(self, f: Callable[["Store[A]"], B]) -> "Store[B]":
        """Return the store with f of the view from each position ((W a → b) → W a → W b)."""
        return Store(lambda position: f(self.seek(position)), self.position, self.last)

    def duplicate(self) -> "Store[Store[A]]":
        """Return the store with its view from each position (W a → W (W a))."""
        return self.extend(lambda store: store)

    def values(self) -> list[A]:
        """Return the values at 0..last."""
        return [self.peek(position) for position in range(self.last + 1)]


def checked_position(position: object, last: int) -> int:
    """Return a position in 0..last. Raises ArgumentInvalid."""
    if not isinstance(position, int) or isinstance(position, bool) or not 0 <= position <= last:
        raise ArgumentInvalid("position", f"{position!r} is none: give 0 (before the first turn) to {last}")
    return position

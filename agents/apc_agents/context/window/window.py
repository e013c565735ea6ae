"""The context window: turns with a focus among them, a store comonad.

Source: docs/reference/conformance/context-engineering.md, section 2.1.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from pydantic import JsonValue
from rpds import HashTrieMap

from apc_agents.context.errors import ArgumentInvalid, TurnInvalid, UnknownResource
from apc_agents.context.window.classification import classify
from apc_agents.context.window.comonad import Store, checked_position
from apc_agents.context.window.linearity import LinearityMap, ResourceClass
from apc_agents.context.window.turns import Turn, TurnRole, Turns, checked_content, checked_metadata, digest_of
from apc_agents.text.tokens import EstimatedTokens, TokenCounter

A = TypeVar("A")
B = TypeVar("B")

DEFAULT_MAX_TOKENS: Final = 100_000
DEFAULT_THRESHOLD: Final = 0.7
"""Above this pressure a context needs compression (Context Engineering Protocol, section 3.2)."""
Clock = Callable[[], datetime]
"""Gives the time of a new turn, with an offset."""


class Folding(StrEnum):
    """What became of a turn that a window no longer holds as it came."""

    DROPPED = "dropped"
    SUMMARIZED = "summarized"
    PAGED = "paged"


@dataclass(frozen=True, slots=True)
class Fold:
    """A turn of which a window knows only where it stood and what it was: `digest` is that of its stored bytes."""

    ordinal: int
    how: Folding
    digest: str


@dataclass(frozen=True)
class ContextSnapshot(Generic[A]):
    """What a window shows from one position."""

    value: A
    position: int
    timestamp: datetime | None
    linearity_map: LinearityMap
    window: "ContextWindow"
    """The window itself, focused at `position`: snapshots nest."""


def utc_now() -> datetime:
    """Return the time of this machine, in UTC."""
    return datetime.now(UTC)


class ContextWindow:
    """Store Comonad: (Position → Turn, Position).

    Positions are 0..n: 0 is before the first turn, n the newest. A window is a cell around shared values: `append`,
    `tag`, `promote` and `drop` change it, while `seek`, `extend`, `duplicate` and `copy` give windows of their own
    that share every turn with it and that no later change reaches.
    """

    __slots__ = (
        "_clock", "_counter", "_folded", "_linearity", "_next_ordinal", "_position", "_total", "_turns", "max_tokens"
    )  # fmt: skip

    def __init__(
        self, max_tokens: int = DEFAULT_MAX_TOKENS, *, counter: TokenCounter | None = None, clock: Clock = utc_now
    ) -> None:
        """Make an empty window.

        Args:
            max_tokens: what the model may be given, ≥ 0.
            counter: counts the tokens of a turn, once, when it comes.
            clock: gives its timestamp.

        Raises:
            ArgumentInvalid: max_tokens is no integer ≥ 0.
        """
        self.max_tokens = checked_size(max_tokens)
        self._counter = counter or EstimatedTokens()
        self._clock = clock
        self._turns = Turns()
        self._position = 0
        self._linearity = LinearityMap()
        self._folded: HashTrieMap[str, Fold] = HashTrieMap()
        self._total = 0
        self._next_ordinal = 1

    # The comonad.

    def extract(self) -> Turn | None:
        """W a → a: the turn in focus; None at position 0."""
        return self._turns[self._position - 1] if self._position else None

    def extend(self, f: Callable[["ContextWindow"], B]) -> list[B]:
        """(W a → b) → W a → W b: f of the window as seen from each position 0..n."""
        return self.views().map(f).values()

    def duplicate(self) -> list[ContextSnapshot[Turn | None]]:
        """W a → W (W a): the window as seen from each position 0..n."""
        return self.extend(ContextWindow.snapshot)

    def views(self) -> Store["ContextWindow"]:
        """W a → W (W a), as a store: at each position the window focused there."""
        return Store(self.seek, self._position, len(self))

    def snapshot(self) -> ContextSnapshot[Turn | None]:
        """Return what the window shows from here."""
        turn = self.extract()
        return ContextSnapshot(turn, self._position, turn.timestamp if turn else None, self._linearity, self)

    def seek(self, position: int) -> "ContextWindow":
        """Return the same window with the focus elsewhere. Raises ArgumentInvalid outside 0..n."""
        moved = self.copy()
        moved._position = checked_position(position, len(self))
        return moved

    @property
    def position(self) -> int:
        """The focus, 0..n."""
        return self._position

    # Turns.

    def __len__(self) -> int:
        return len(self._turns)

    def __bool__(self) -> bool:
        """Be true for every window, empty ones included."""
        return True

    def all_turns(self) -> list[Turn]:
        """Return the turns, oldest first."""
        return list(self._turns)

    def turns_of(self, resource_class: ResourceClass) -> list[Turn]:
        """Return the turns of a class, oldest first."""
        return [turn for turn in self._turns if self.class_of(turn) is resource_class]

    def turn(self, resource_id: str) -> Turn:
        """Return the turn with this id. Raises UnknownResource when the window holds none."""
        for turn in self._turns:
            if turn.resource_id == resource_id:
                return turn
        raise UnknownResource(resource_id)

    def measured(self, role: TurnRole | str, content: str, metadata: Mapping[str, JsonValue] | None = None) -> Turn:
        """Return the turn that `append` would add, with its tokens; the window stays. Raises TurnInvalid."""
        ordinal, text = self._next_ordinal, checked_content(content)
        return Turn(
            role=_checked_role(role),
            content=text,
            timestamp=self._clock(),
            resource_id=f"t{ordinal}",
            ordinal=ordinal,
            tokens=self._counter.count(text),
            metadata=checked_metadata(metadata),
        )

    def append(self, role: TurnRole | str, content: str, metadata: Mapping[str, JsonValue] | None = None) -> Turn:
        """Add a turn, classified by role and content, and focus on it.

        Raises:
            TurnInvalid: an unknown role, a content or metadata that no store can hold.
        """
        return self.append_turn(self.measured(role, content, metadata))

    def append_turn(self, turn: Turn) -> Turn:
        """Add a turn that `measured` gave."""
        if turn.ordinal < self._next_ordinal:
            raise TurnInvalid("ordinal", f"{turn.ordinal} has been given: take the turn from measured()")
        resource_class, source = classify(turn.role, turn.content, is_first=not self._turns and not self._folded)
        self._linearity = self._linearity.tag(turn.resource_id, resource_class, source)
        self._turns = self._turns.append(turn)
        self._total += turn.tokens
        self._next_ordinal = turn.ordinal + 1
        self._position = len(self._turns)
        return turn

    @property
    def next_ordinal(self) -> int:
        """The ordinal of the next turn; its resource_id is `t` and this number."""
        return self._next_ordinal

    # Linearity.

    @property
    def linearity(self) -> LinearityMap:
        """The classes of all turns that ever were in this window."""
        return self._linearity

    def class_of(self, turn: Turn) -> ResourceClass:
        """Return the class of a turn of this window."""
        return self._linearity.get_class(turn.resource_id)

    def tag(self, resource_id: str, resource_class: ResourceClass, source: str = "tag") -> None:
        """Assign a class to a turn. Raises UnknownResource, LinearityError."""
        self._linearity.resource(resource_id)
        self._linearity = self._linearity.tag(resource_id, resource_class, source)

    def promote(self, resource_id: str, resource_class: ResourceClass, rationale: str = "promote") -> None:
        """Raise the class of a turn. Raises UnknownResource, LinearityError."""
        self._linearity = self._linearity.promote(resource_id, resource_class, rationale)

    def drop(self, resource_id: str, rationale: str = "drop") -> Turn:
        """Take a DROPPABLE turn out; returns it.

        Raises:
            UnknownResource: the window holds no such turn.
            LinearityError: its class does not allow it.
        """
        turn = self.turn(resource_id)
        self._linearity = self._linearity.drop(resource_id, rationale)
        kept = (one for one in self._turns if one is not turn)
        fold = Fold(turn.ordinal, Folding.DROPPED, turn.digest)
        self.become(self.with_folds({resource_id: fold}).with_turns(kept))
        return turn

    # Pressure.

    @property
    def total_tokens(self) -> int:
        """Tokens of all turns."""
        return self._total

    @property
    def pressure(self) -> float:
        """Tokens used / max_tokens, clamped to 0..1; 0 when max_tokens is 0."""
        return min(1.0, self._total / self.max_tokens) if self.max_tokens else 0.0

    @property
    def overflow_tokens(self) -> int:
        """Tokens above max_tokens, ≥ 0: what the clamped pressure does not tell."""
        return max(0, self._total - self.max_tokens)

    @property
    def needs_compression(self) -> bool:
        """Whether the pressure is above 0.7; a session asks its adaptive threshold instead."""
        return self.pressure > DEFAULT_THRESHOLD

    @property
    def counter(self) -> TokenCounter:
        """What counts the tokens here."""
        return self._counter

    # Versions.

    @property
    def folded(self) -> Mapping[str, Fold]:
        """The turns that this window no longer holds as they came, by resource_id."""
        return self._folded

    def copy(self) -> "ContextWindow":
        """Return a window of its own with the same turns, in constant time and space."""
        copied = ContextWindow.__new__(ContextWindow)
        for name in ContextWindow.__slots__:
            setattr(copied, name, getattr(self, name))
        return copied

    def with_turns(self, turns: Iterable[Turn]) -> "ContextWindow":
        """Return a window with other turns, given in order; the focus stays on its turn, or goes to the one before."""
        changed = self.copy()
        focus = self.extract()
        changed._turns = Turns(turns)
        changed._total = sum(turn.tokens for turn in changed._turns)
        if self._position == len(self):
            changed._position = len(changed)
        else:
            ordinal = focus.ordinal if focus else 0
            changed._position = sum(turn.ordinal <= ordinal for turn in changed._turns)
        return changed

    def with_folds(self, folds: Mapping[str, Fold], unfolded: Iterable[str] = ()) -> "ContextWindow":
        """Return a window that remembers other folds: `folds` from now on, `unfolded` no more. The turns stay.

        A turn that is folded again keeps the digest of what it was at first: that is what the store has.
        """
        changed = self.copy()
        for resource_id in unfolded:
            changed._folded = changed._folded.discard(resource_id)
            changed._linearity = changed._linearity.restore(resource_id)
        known = changed._folded
        changed._folded = known.update(
            {key: replace(fold, digest=known[key].digest) if key in known else fold for key, fold in folds.items()}
        )
        return changed

    def know(self, resource_id: str, resource_class: ResourceClass, source: str) -> None:
        """Assign a class to an id that no turn had yet. Raises LinearityError."""
        self._linearity = self._linearity.tag(resource_id, resource_class, source)

    @property
    def digest(self) -> str:
        """SHA-256 over the stored turns in their order, a line each, 64 hex digits."""
        return digest_of(b"\n".join(turn.to_bytes() for turn in self._turns))

    def resized(self, max_tokens: int) -> "ContextWindow":
        """Return the same turns for a model that takes more, or less. Raises ArgumentInvalid."""
        changed = self.copy()
        changed.max_tokens = checked_size(max_tokens)
        return changed

    def cleared(self) -> "ContextWindow":
        """Return an empty window that goes on counting where this one stands, so that no id is given twice."""
        empty = ContextWindow(self.max_tokens, counter=self._counter, clock=self._clock)
        empty._next_ordinal = self._next_ordinal
        return empty

    def become(self, other: "ContextWindow") -> None:
        """Take over everything that another window holds."""
        for name in ContextWindow.__slots__:
            setattr(self, name, getattr(other, name))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContextWindow):
            return NotImplemented
        return self is other or self._contents() == other._contents()

    def __repr__(self) -> str:
        return f"ContextWindow({len(self)} turns, at {self._position}, {self._total}/{self.max_tokens} tokens)"

    def _contents(self) -> tuple[Any, ...]:
        return (self.max_tokens, self._position, self._next_ordinal, self._turns, self._folded, self._linearity)

    # Stored form.

    def to_document(self) -> dict[str, Any]:
        """Return the window as JSON."""
        return {
            "max_tokens": self.max_tokens,
            "position": self._position,
            "next_ordinal": self._next_ordinal,
            "turns": [turn.to_document() for turn in self._turns],
            "linearity": self._linearity.to_document(),
            "folded": {key: [fold.ordinal, fold.how.value, fold.digest] for key, fold in self._folded.items()},
        }

    @classmethod
    def from_document(
        cls, document: Mapping[str, Any], *, counter: TokenCounter | None = None, clock: Clock = utc_now
    ) -> "ContextWindow":
        """Return the window that `to_document` described; tokens are counted anew."""
        window = cls(document["max_tokens"], counter=counter, clock=clock)
        count = window._counter.count
        window._turns = Turns(Turn.from_document(turn, count(turn["content"])) for turn in document["turns"])
        window._total = sum(turn.tokens for turn in window._turns)
        window._position = checked_position(document["position"], len(window))
        window._next_ordinal = document["next_ordinal"]
        window._linearity = LinearityMap.from_document(document["linearity"])
        window._folded = HashTrieMap(
            {key: Fold(ordinal, Folding(how), digest) for key, (ordinal, how, digest) in document["folded"].items()}
        )
        return window


def checked_size(max_tokens: object) -> int:
    """Return a number of tokens. Raises ArgumentInvalid."""
    if isinstance(max_tokens, int) and not isinstance(max_tokens, bool) and max_tokens >= 0:
        return max_tokens
    raise ArgumentInvalid("max_tokens", f"{max_tokens!r} is no number of tokens: give an integer ≥ 0")


def _checked_role(role: object) -> TurnRole:
    try:
        return TurnRole(role)  # type: ignore[arg-type]
    except ValueError:
        raise TurnInvalid("role", f"{role!r} is none: give {', '.join(TurnRole)}") from None

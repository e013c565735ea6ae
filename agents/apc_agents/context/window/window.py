"""The context window: turns with a focus among them, a store comonad.

Source: docs/reference/conformance/context-engineering.md, section 2.1.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

from pydantic import JsonValue

from apc_agents.context.errors import TurnInvalid
from apc_agents.context.window.comonad import Store
from apc_agents.context.window.contents import Fold, WindowContents, checked_size
from apc_agents.context.window.linearity import LinearityMap, ResourceClass
from apc_agents.context.window.turns import Turn, TurnRole, checked_content, checked_metadata
from apc_agents.text.tokens import EstimatedTokens, TokenCounter

A = TypeVar("A")
B = TypeVar("B")

DEFAULT_MAX_TOKENS: Final = 100_000
DEFAULT_THRESHOLD: Final = 0.7
"""Above this pressure a context needs compression (Context Engineering Protocol, section 3.2)."""
Clock = Callable[[], datetime]
"""Gives the time of a new turn, with an offset."""


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
    `tag`, `promote` and `drop` change it, while `seek`, `extend`, `duplicate` and `copy` give separate windows
    that share every turn with it and that no later change reaches.
    """

    __slots__ = ("_clock", "_contents", "_counter")

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
        self._contents = WindowContents(checked_size(max_tokens))
        self._counter = counter or EstimatedTokens()
        self._clock = clock

    # The comonad.

    def extract(self) -> Turn | None:
        """Return the turn in focus (W a → a); None at position 0."""
        return self._contents.focus

    def extend(self, f: Callable[["ContextWindow"], B]) -> list[B]:
        """Return f of the window as seen from each position 0..n ((W a → b) → W a → W b)."""
        return self.views().map(f).values()

    def duplicate(self) -> list[ContextSnapshot[Turn | None]]:
        """Return the window as seen from each position 0..n (W a → W (W a))."""
        return self.extend(ContextWindow.snapshot)

    def views(self) -> Store["ContextWindow"]:
        """Return a store with the window focused at each position (W a → W (W a))."""
        return Store(self.seek, self.position, len(self))

    def snapshot(self) -> ContextSnapshot[Turn | None]:
        """Return what the window shows from here."""
        turn = self.extract()
        return ContextSnapshot(turn, self.position, turn.timestamp if turn else None, self.linearity, self)

    def seek(self, position: int) -> "ContextWindow":
        """Return the same window with the focus elsewhere. Raises ArgumentInvalid outside 0..n."""
        return self._holding(self._contents.at(position))

    @property
    def position(self) -> int:
        """The focus, 0..n."""
        return self._contents.position

    # Turns.

    def __len__(self) -> int:
        return len(self._contents.turns)

    def __bool__(self) -> bool:
        """Return True: every window is true, an empty one too."""
        return True

    def all_turns(self) -> list[Turn]:
        """Return the turns, oldest first."""
        return list(self._contents.turns)

    def turns_of(self, resource_class: ResourceClass) -> list[Turn]:
        """Return the turns of a class, oldest first."""
        return [turn for turn in self._contents.turns if self.class_of(turn) is resource_class]

    def turn(self, resource_id: str) -> Turn:
        """Return the turn with this id. Raises UnknownResource when the window holds none."""
        return self._contents.turn(resource_id)

    def measured(self, role: TurnRole | str, content: str, metadata: Mapping[str, JsonValue] | None = None) -> Turn:
        """Return the turn that `append` would add, with its tokens; the window stays. Raises TurnInvalid."""
        ordinal, text = self.next_ordinal, checked_content(content)
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
        if turn.ordinal < self.next_ordinal:
            raise TurnInvalid("ordinal", f"{turn.ordinal} has been given: take the turn from measured()")
        self._contents = self._contents.with_turn(turn)
        return turn

    @property
    def next_ordinal(self) -> int:
        """The ordinal of the next turn; its resource_id is `t` and this number."""
        return self._contents.next_ordinal

    # Linearity.

    @property
    def linearity(self) -> LinearityMap:
        """The classes of all turns that ever were in this window."""
        return self._contents.linearity

    def class_of(self, turn: Turn) -> ResourceClass:
        """Return the class of a turn of this window."""
        return self._contents.linearity.get_class(turn.resource_id)

    def tag(self, resource_id: str, resource_class: ResourceClass, source: str = "tag") -> None:
        """Assign a class to a turn. Raises UnknownResource, LinearityError."""
        self.linearity.resource(resource_id)
        self.know(resource_id, resource_class, source)

    def promote(self, resource_id: str, resource_class: ResourceClass, rationale: str = "promote") -> None:
        """Raise the class of a turn. Raises UnknownResource, LinearityError."""
        promoted = self.linearity.promote(resource_id, resource_class, rationale)
        self._contents = replace(self._contents, linearity=promoted)

    def drop(self, resource_id: str, rationale: str = "drop") -> Turn:
        """Take a DROPPABLE turn out; returns it.

        Raises:
            UnknownResource: the window holds no such turn.
            LinearityError: its class does not allow it.
        """
        turn = self.turn(resource_id)
        self._contents = self._contents.without(turn, rationale)
        return turn

    # Pressure.

    @property
    def total_tokens(self) -> int:
        """Tokens of all turns."""
        return self._contents.total_tokens

    @property
    def max_tokens(self) -> int:
        """What the model may be given."""
        return self._contents.max_tokens

    @property
    def pressure(self) -> float:
        """Tokens used / max_tokens, clamped to 0..1; 0 when max_tokens is 0."""
        return self._contents.pressure

    @property
    def overflow_tokens(self) -> int:
        """Tokens above max_tokens, ≥ 0: what the clamped pressure does not tell."""
        return max(0, self.total_tokens - self.max_tokens)

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
        return self._contents.folded

    def copy(self) -> "ContextWindow":
        """Return a separate window with the same turns, in constant time and space."""
        return self._holding(self._contents)

    def with_turns(self, turns: Iterable[Turn]) -> "ContextWindow":
        """Return a window with other turns, given in order; the focus stays on its turn, or goes to the one before."""
        return self._holding(self._contents.with_turns(turns))

    def with_folds(self, folds: Mapping[str, Fold], unfolded: Iterable[str] = ()) -> "ContextWindow":
        """Return a window that remembers other folds: `folds` from now on, `unfolded` no more. The turns stay.

        A turn that is folded again keeps the digest of what it was at first: that is what the store has.
        """
        return self._holding(self._contents.with_folds(folds, unfolded))

    def know(self, resource_id: str, resource_class: ResourceClass, source: str) -> None:
        """Assign a class to an id that no turn had yet. Raises LinearityError."""
        tagged = self.linearity.tag(resource_id, resource_class, source)
        self._contents = replace(self._contents, linearity=tagged)

    @property
    def digest(self) -> str:
        """SHA-256 over the stored turns in their order, a line each, 64 hex digits."""
        return self._contents.digest

    def resized(self, max_tokens: int) -> "ContextWindow":
        """Return the same turns for a model that takes more, or less. Raises ArgumentInvalid."""
        return self._holding(replace(self._contents, max_tokens=checked_size(max_tokens)))

    def cleared(self) -> "ContextWindow":
        """Return an empty window that goes on counting where this one stands, so that no id is given twice."""
        return self._holding(WindowContents(self.max_tokens, next_ordinal=self.next_ordinal))

    def become(self, other: "ContextWindow") -> None:
        """Take over everything that another window holds."""
        self._contents, self._counter, self._clock = other._contents, other._counter, other._clock

    def _holding(self, contents: WindowContents) -> "ContextWindow":
        """Return a window with other contents."""
        window = ContextWindow.__new__(ContextWindow)
        window._contents, window._counter, window._clock = contents, self._counter, self._clock
        return window

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ContextWindow):
            return NotImplemented
        return self is other or self._contents == other._contents

    def __repr__(self) -> str:
        return f"ContextWindow({len(self)} turns, at {self.position}, {self.total_tokens}/{self.max_tokens} tokens)"

    # Stored form.

    def to_document(self) -> dict[str, Any]:
        """Return the window as JSON."""
        return self._contents.to_document()

    @classmethod
    def from_document(
        cls, document: Mapping[str, Any], *, counter: TokenCounter | None = None, clock: Clock = utc_now
    ) -> "ContextWindow":
        """Return the window that `to_document` described; tokens are counted again."""
        window = cls(counter=counter, clock=clock)
        window._contents = WindowContents.from_document(document, window._counter.count)
        return window


def _checked_role(role: object) -> TurnRole:
    try:
        return TurnRole(str(role))
    except ValueError:
        raise TurnInvalid("role", f"{role!r} is none: give {', '.join(TurnRole)}") from None

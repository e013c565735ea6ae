"""The window of a context: turns at positions with a focus (a store comonad), their classes, and its threshold.

Source: docs/reference/conformance/context-engineering.md, section 2.1 and appendix A.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from pydantic import JsonValue
from rpds import HashTrieMap

from apc_minds.context.turns import (
    ArgumentInvalid,
    LinearityMap,
    ResourceClass,
    Turn,
    TurnInvalid,
    TurnRole,
    Turns,
    UnknownResource,
    checked_content,
    checked_metadata,
    classify,
    digest_of,
)
from apc_minds.text import EstimatedTokens, TokenCounter

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


# What a context window holds, as a value: turns with their classes, what is folded, and the focus.


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


@dataclass(frozen=True, slots=True)
class WindowContents:
    """Contents that windows share. A change makes other contents, which share every turn with these."""

    max_tokens: int
    turns: Turns = field(default_factory=Turns)
    position: int = 0
    """The focus, 0..n."""
    linearity: LinearityMap = field(default_factory=LinearityMap)
    folded: "HashTrieMap[str, Fold]" = field(default_factory=HashTrieMap)
    gists: "HashTrieMap[str, Turn]" = field(default_factory=HashTrieMap)
    """Of folded turns that a model is still told of: the turn with a shorter content."""
    next_ordinal: int = 1
    total_tokens: int = field(default=0, compare=False)
    """Of the turns and the gists."""

    @property
    def focus(self) -> Turn | None:
        """The turn in focus; None at position 0."""
        return self.turns[self.position - 1] if self.position else None

    @property
    def pressure(self) -> float:
        """Tokens used / max_tokens, clamped to 0..1; 0 when max_tokens is 0."""
        return min(1.0, self.total_tokens / self.max_tokens) if self.max_tokens else 0.0

    @property
    def digest(self) -> str:
        """SHA-256 over the stored turns in their order, a line each, 64 hex digits."""
        return digest_of(b"\n".join(turn.to_bytes() for turn in self.turns))

    def turn(self, resource_id: str) -> Turn:
        """Return the turn with this id. Raises UnknownResource when there is none."""
        for turn in self.turns:
            if turn.resource_id == resource_id:
                return turn
        raise UnknownResource(resource_id)

    def at(self, position: int) -> "WindowContents":
        """Return the same contents with the focus elsewhere. Raises ArgumentInvalid outside 0..n."""
        return replace(self, position=checked_position(position, len(self.turns)))

    def with_turn(self, turn: Turn) -> "WindowContents":
        """Add a turn, classified by role and content, and focus on it."""
        resource_class, source = classify(turn.role, turn.content, is_first=not self.turns and not self.folded)
        turns = self.turns.append(turn)
        return replace(
            self,
            turns=turns,
            position=len(turns),
            linearity=self.linearity.tag(turn.resource_id, resource_class, source),
            next_ordinal=turn.ordinal + 1,
            total_tokens=self.total_tokens + turn.tokens,
        )

    def without(self, turn: Turn, rationale: str) -> "WindowContents":
        """Drop a turn, and remember its fold. Raises LinearityError when its class does not allow it."""
        dropped = replace(self, linearity=self.linearity.drop(turn.resource_id, rationale))
        fold = Fold(turn.ordinal, Folding.DROPPED, turn.digest)
        return dropped.with_folds({turn.resource_id: fold}).with_turns(one for one in self.turns if one is not turn)

    def with_turns(self, turns: Iterable[Turn]) -> "WindowContents":
        """Hold other turns, given in order; the focus stays on its turn, or goes to the one before."""
        changed = Turns(turns)
        if self.position == len(self.turns):
            position = len(changed)
        else:
            ordinal = self.focus.ordinal if self.focus else 0
            position = sum(turn.ordinal <= ordinal for turn in changed)
        return replace(self, turns=changed, position=position, total_tokens=_tokens(changed, self.gists))

    def with_folds(self, folds: Mapping[str, Fold], unfolded: Iterable[str] = ()) -> "WindowContents":
        """Remember other folds: `folds` from now on, `unfolded` and their gists no more. The turns stay.

        A turn that is folded again keeps the digest of what it was at first: that is what the store has.
        """
        known, linearity, gists = self.folded, self.linearity, self.gists
        for resource_id in unfolded:
            known, linearity = known.discard(resource_id), linearity.restore(resource_id)
            gists = gists.discard(resource_id)
        kept = {key: replace(fold, digest=known[key].digest) if key in known else fold for key, fold in folds.items()}
        return replace(self, folded=known.update(kept), linearity=linearity).with_gists(gists)

    def with_gists(self, gists: Mapping[str, Turn]) -> "WindowContents":
        """Tell a model of these folded turns, and of no others."""
        return replace(self, gists=HashTrieMap(gists), total_tokens=_tokens(self.turns, gists))

    def to_document(self) -> dict[str, Any]:
        """Return the contents as JSON."""
        return {
            "max_tokens": self.max_tokens,
            "position": self.position,
            "next_ordinal": self.next_ordinal,
            "turns": [turn.to_document() for turn in self.turns],
            "linearity": self.linearity.to_document(),
            "folded": {key: [fold.ordinal, fold.how.value, fold.digest] for key, fold in self.folded.items()},
            "gists": [gist.to_document() for gist in self.gists.values()],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any], count: Callable[[str], int]) -> "WindowContents":
        """Return the contents that `to_document` described; `count` counts the tokens again."""
        turns = Turns(Turn.from_document(turn, count(turn["content"])) for turn in document["turns"])
        folded = {
            key: Fold(ordinal, Folding(how), digest) for key, (ordinal, how, digest) in document["folded"].items()
        }
        told = document.get("gists", ())  # older documents have none
        gists = {gist["resource_id"]: Turn.from_document(gist, count(gist["content"])) for gist in told}
        return cls(
            max_tokens=checked_size(document["max_tokens"]),
            turns=turns,
            position=checked_position(document["position"], len(turns)),
            linearity=LinearityMap.from_document(document["linearity"]),
            folded=HashTrieMap(folded),
            gists=HashTrieMap(gists),
            next_ordinal=document["next_ordinal"],
            total_tokens=_tokens(turns, gists),
        )


def _tokens(turns: Iterable[Turn], gists: Mapping[str, Turn]) -> int:
    return sum(turn.tokens for turn in turns) + sum(gist.tokens for gist in gists.values())


def checked_size(max_tokens: object) -> int:
    """Return a number of tokens. Raises ArgumentInvalid."""
    if isinstance(max_tokens, int) and not isinstance(max_tokens, bool) and max_tokens >= 0:
        return max_tokens
    raise ArgumentInvalid("max_tokens", f"{max_tokens!r} is no number of tokens: give an integer ≥ 0")


# The context window: turns with a focus among them, a store comonad.
#
# Source: docs/reference/conformance/context-engineering.md, section 2.1.

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
        """Tokens of all turns, and of the gists of folded ones."""
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

    @property
    def gists(self) -> Mapping[str, Turn]:
        """Of folded turns that a model is still told of: the turn with a shorter content, by resource_id."""
        return self._contents.gists

    def copy(self) -> "ContextWindow":
        """Return a separate window with the same turns, in constant time and space."""
        return self._holding(self._contents)

    def with_turns(self, turns: Iterable[Turn]) -> "ContextWindow":
        """Return a window with other turns, given in order; the focus stays on its turn, or goes to the one before."""
        return self._holding(self._contents.with_turns(turns))

    def with_folds(self, folds: Mapping[str, Fold], unfolded: Iterable[str] = ()) -> "ContextWindow":
        """Return a window that remembers other folds: `folds` from now on, `unfolded` and their gists no more.

        The turns stay. A turn that is folded again keeps the digest of what it was at first: that is what the store
        has.
        """
        return self._holding(self._contents.with_folds(folds, unfolded))

    def with_gists(self, gists: Mapping[str, Turn]) -> "ContextWindow":
        """Return a window that tells a model of these folded turns, and of no others."""
        return self._holding(self._contents.with_gists(gists))

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


# When a context needs compression, as the task goes.
#
# Source: docs/specification/agents.md section 4.

LOWEST, HIGHEST = 0.5, 0.95
PROGRESS_SHARE: Final = 0.1
"""How far the threshold is above its base at the start of a task, and below at its end."""
ERROR_SHARE: Final = 0.15
"""How far errors raise it: what went wrong is worth keeping."""
LOOP_SHARE: Final = 0.15
"""How far a loop lowers it: a shorter context breaks the pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveThreshold:
    """The pressure above which a context is compressed, within 0.5..0.95.

    It falls with the progress of the task and when a loop is found, and rises with the error rate.
    """

    base_threshold: float = DEFAULT_THRESHOLD
    task_progress: float | None = None
    """0..1; None = not known, which is the middle."""
    error_rate: float = 0.0
    """Share of the last steps that failed, 0..1."""
    loop_detected: bool = False

    def __post_init__(self) -> None:
        """Check the signals. Raises ArgumentInvalid."""
        for name in ("base_threshold", "task_progress", "error_rate"):
            value = getattr(self, name)
            if value is not None or name != "task_progress":
                checked_fraction(name, value)
        if not isinstance(self.loop_detected, bool):
            raise ArgumentInvalid("loop_detected", f"{self.loop_detected!r}: give true or false")

    @property
    def effective_threshold(self) -> float:
        """base + 0.1 (1 - 2 task_progress) + 0.15 error_rate - 0.15 loop_detected, clamped to 0.5..0.95."""
        progress = 0.5 if self.task_progress is None else self.task_progress
        moved = (
            self.base_threshold
            + PROGRESS_SHARE * (1 - 2 * progress)
            + ERROR_SHARE * self.error_rate
            - LOOP_SHARE * self.loop_detected
        )
        return max(LOWEST, min(HIGHEST, moved))

    def update(self, **changes: float | bool | None) -> "AdaptiveThreshold":
        """Return the threshold with some of its fields changed. Raises ArgumentInvalid."""
        for name in changes:
            if name not in _FIELDS:
                raise ArgumentInvalid(name, f"unknown: give {', '.join(_FIELDS)}")
        return replace(self, **changes)  # type: ignore[arg-type]

    def to_document(self) -> dict[str, float | bool | None]:
        """Return the fields as JSON."""
        return {name: getattr(self, name) for name in _FIELDS}


_FIELDS: Final = tuple(field.name for field in fields(AdaptiveThreshold))


def checked_fraction(place: str, value: object) -> float:
    """Return a number in 0..1. Raises ArgumentInvalid."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise ArgumentInvalid(place, f"{value!r} is no number in 0..1: give one")


# Checks a window against the three laws of a comonad.
#
# Source: docs/reference/conformance/context-engineering.md, appendix A.


def verify_comonad_laws(window: ContextWindow) -> bool:
    """Return whether a window obeys the laws of the store comonad; True, or AssertionError that names the law.

    1. Left identity:  extract ∘ duplicate = id
    2. Right identity: fmap extract ∘ duplicate = id
    3. Associativity:  duplicate ∘ duplicate = fmap duplicate ∘ duplicate, compared window by window

    The third law looks at (n + 1)² windows.
    """
    snapshots = window.duplicate()
    here = snapshots[window.position]
    _holds(here.window == window and here.value == window.extract(), "left identity")
    direct = [window.seek(position).extract() for position in range(len(window) + 1)]
    _holds([snapshot.value for snapshot in snapshots] == direct, "right identity")
    views = window.views()
    outside_in, inside_out = views.duplicate(), views.map(ContextWindow.views)
    _holds(_nested(outside_in) == _nested(inside_out), "associativity")
    return True


def _nested(stores: Store[Store[ContextWindow]]) -> list[tuple[int, int, list[ContextWindow]]]:
    """Return both focuses and every window, at every outer position."""
    return [(stores.position, store.position, store.values()) for store in stores.values()]


def _holds(law: bool, name: str) -> None:
    # Raised, not asserted: the check must also work under `python -O`.
    if not law:
        raise AssertionError(f"the window breaks the {name} of a comonad")

"""What a context window holds, as a value: turns with their classes, what is folded, and the focus."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from rpds import HashTrieMap

from apc_agents.context.errors import ArgumentInvalid, UnknownResource
from apc_agents.context.window.classification import classify
from apc_agents.context.window.comonad import checked_position
from apc_agents.context.window.linearity import LinearityMap
from apc_agents.context.window.turns import Turn, Turns, digest_of


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
    next_ordinal: int = 1
    total_tokens: int = field(default=0, compare=False)

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
        total_tokens = sum(turn.tokens for turn in changed)
        return replace(self, turns=changed, position=position, total_tokens=total_tokens)

    def with_folds(self, folds: Mapping[str, Fold], unfolded: Iterable[str] = ()) -> "WindowContents":
        """Remember other folds: `folds` from now on, `unfolded` no more. The turns stay.

        A turn that is folded again keeps the digest of what it was at first: that is what the store has.
        """
        known, linearity = self.folded, self.linearity
        for resource_id in unfolded:
            known, linearity = known.discard(resource_id), linearity.restore(resource_id)
        kept = {key: replace(fold, digest=known[key].digest) if key in known else fold for key, fold in folds.items()}
        return replace(self, folded=known.update(kept), linearity=linearity)

    def to_document(self) -> dict[str, Any]:
        """Return the contents as JSON."""
        return {
            "max_tokens": self.max_tokens,
            "position": self.position,
            "next_ordinal": self.next_ordinal,
            "turns": [turn.to_document() for turn in self.turns],
            "linearity": self.linearity.to_document(),
            "folded": {key: [fold.ordinal, fold.how.value, fold.digest] for key, fold in self.folded.items()},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any], count: Callable[[str], int]) -> "WindowContents":
        """Return the contents that `to_document` described; `count` counts the tokens again."""
        turns = Turns(Turn.from_document(turn, count(turn["content"])) for turn in document["turns"])
        folded = {
            key: Fold(ordinal, Folding(how), digest) for key, (ordinal, how, digest) in document["folded"].items()
        }
        return cls(
            max_tokens=checked_size(document["max_tokens"]),
            turns=turns,
            position=checked_position(document["position"], len(turns)),
            linearity=LinearityMap.from_document(document["linearity"]),
            folded=HashTrieMap(folded),
            next_ordinal=document["next_ordinal"],
            total_tokens=sum(turn.tokens for turn in turns),
        )


def checked_size(max_tokens: object) -> int:
    """Return a number of tokens. Raises ArgumentInvalid."""
    if isinstance(max_tokens, int) and not isinstance(max_tokens, bool) and max_tokens >= 0:
        return max_tokens
    raise ArgumentInvalid("max_tokens", f"{max_tokens!r} is no number of tokens: give an integer ≥ 0")

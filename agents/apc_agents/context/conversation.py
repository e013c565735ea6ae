"""The conversation of a session: its window in its state, and what may be done to both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor
from typing import Final, Protocol

from pydantic import JsonValue

from apc_agents.context.compression import (
    PLACEHOLDER_TOKENS,
    CompressionAudit,
    CompressionConfig,
    CompressionResult,
    ContextProjector,
    ExpansionResult,
    FoldedTurn,
    fits,
    folded_turn,
    is_pinned,
    merged,
    page_out,
    recorded,
)
from apc_agents.context.errors import ArgumentInvalid, ContextStale, MessageTooLong
from apc_agents.context.polynomial import KIND_OF_ROLE, ContextState, check_direction, state_of
from apc_agents.context.turns import ResourceClass, Turn, TurnRole
from apc_agents.context.window import (
    DEFAULT_MAX_TOKENS,
    AdaptiveThreshold,
    ContextWindow,
    Folding,
    checked_fraction,
    checked_size,
)
from apc_agents.text import ExtractiveSummarizer, Summarizer


class ContextStore(Protocol):
    """Bytes by session. Each value is UTF-8 JSON and comes back byte for byte; durable when a call returns.

    A store that keeps them in JSONB stores the text as a JSON string: JSONB does not keep bytes.
    """

    async def load(self, session_id: str) -> tuple[bytes, int] | None:
        """Return the session's document and its revision; None when it was never saved."""
        ...

    async def save(self, session_id: str, document: bytes, revision: int) -> int:
        """Replace the document if it still has this revision (0 = none yet); returns the new revision.

        Raises:
            ContextStale: it has another one.
        """
        ...

    async def put_turns(self, session_id: str, turns: Mapping[str, bytes]) -> None:
        """Keep turns by resource_id; one with the same id is replaced."""
        ...

    async def get_turns(self, session_id: str, resource_ids: Sequence[str]) -> Mapping[str, bytes]:
        """Return those of the turns that are still there, by resource_id."""
        ...

    async def delete_turns(self, session_id: str, prefix: str = "") -> None:
        """Forget the turns of a session whose id begins so, by default all; none is no error."""
        ...


class InMemoryContextStore:
    """A store that ends with the process."""

    def __init__(self) -> None:
        self._documents: dict[str, tuple[bytes, int]] = {}
        self._turns: dict[str, dict[str, bytes]] = {}

    async def load(self, session_id: str) -> tuple[bytes, int] | None:
        """Return the document and its revision."""
        return self._documents.get(session_id)

    async def save(self, session_id: str, document: bytes, revision: int) -> int:
        """Compare and set."""
        _, current = self._documents.get(session_id, (b"", 0))
        if current != revision:
            raise ContextStale(session_id, revision)
        self._documents[session_id] = (document, revision + 1)
        return revision + 1

    async def put_turns(self, session_id: str, turns: Mapping[str, bytes]) -> None:
        """Keep turns."""
        self._turns.setdefault(session_id, {}).update(turns)

    async def get_turns(self, session_id: str, resource_ids: Sequence[str]) -> Mapping[str, bytes]:
        """Return those that are there."""
        kept = self._turns.get(session_id, {})
        return {resource_id: kept[resource_id] for resource_id in resource_ids if resource_id in kept}

    async def delete_turns(self, session_id: str, prefix: str = "") -> None:
        """Forget them."""
        kept = self._turns.pop(session_id, {})
        self._turns[session_id] = {key: turn for key, turn in kept.items() if not key.startswith(prefix)}


AWAITS_AFTER: Final = {TurnRole.USER: True, TurnRole.TOOL: True, TurnRole.ASSISTANT: False}
"""Whether an answer is awaited after a turn of this role; what the system says changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """How a session keeps its window below the threshold."""

    max_tokens: int = DEFAULT_MAX_TOKENS
    """What the window may hold; the prompt that the PromptBuilder makes comes on top."""
    auto_compress: bool = True
    """Compress after every turn that leaves the context PRESSURED."""
    target_pressure: float = 0.5
    """What an automatic compression aims at; well below the threshold, so that not every turn causes one."""
    keep_recent: int = 2
    """So many of the newest turns, the one that came last included, are touched last."""
    summary_tokens: int = 32
    """What a REQUIRED turn is summarized to."""
    paging_share: float = 0.6
    """When turns are paged out, the share of the target that is left: the rest is for what comes."""

    def __post_init__(self) -> None:
        """Check the shares and limits. Raises ArgumentInvalid."""
        checked_fraction("target_pressure", self.target_pressure)
        checked_fraction("paging_share", self.paging_share)
        checked_size(self.max_tokens)
        compression = self.compression(self.keep_recent)
        if compression.keep_recent < 1:
            raise ArgumentInvalid("keep_recent", f"{self.keep_recent} would lose the turn that just came: give ≥ 1")

    def compression(self, keep_recent: int) -> CompressionConfig:
        """Return how a compression goes that leaves so many of the newest turns alone. Raises ArgumentInvalid."""
        return CompressionConfig(summary_tokens=self.summary_tokens, keep_recent=keep_recent)


@dataclass(slots=True)
class Conversation:
    """A window and its state. A change that raises may leave it half done: change a `copy` and take that over."""

    session_id: str
    window: ContextWindow
    store: ContextStore
    config: SessionConfig
    state: ContextState = ContextState.EMPTY
    threshold: AdaptiveThreshold = field(default_factory=AdaptiveThreshold)
    summarizer: Summarizer = field(default_factory=ExtractiveSummarizer)
    compressions: int = 0
    awaits_answer: bool = False
    """Whether the user, or a tool, has spoken since the last answer; no compression changes that."""
    audits: list[CompressionAudit] = field(default_factory=list)
    """Of the changes made here, not yet told."""
    forgets: bool = False
    """Whether what the store has of this session shall go when the changes are taken over."""

    def copy(self) -> "Conversation":
        """Return the same conversation, to be changed apart; nothing is copied that grows."""
        return replace(self, window=self.window.copy(), audits=[], forgets=False)

    @property
    def message_limit(self) -> int:
        """Tokens of the longest turn that still fits when all that may be folded is folded."""
        first = self.window.all_turns()[:1]
        pinned = sum(turn.tokens for turn in first if is_pinned(self.window, turn))
        room = floor(self.window.max_tokens * self.threshold.effective_threshold)
        return max(0, room - pinned - PLACEHOLDER_TOKENS)

    async def append(self, role: TurnRole | str, content: str, metadata: Mapping[str, JsonValue] | None = None) -> Turn:
        """Add a turn; with auto_compress the context is not PRESSURED when this returns.

        Raises:
            TurnInvalid: it cannot be stored. MessageTooLong: it cannot fit.
            ContextPressureError, InvalidTransition: the state does not take it.
            Exception: what the summarizer or the store raised.
        """
        turn = self.window.measured(role, content, metadata)
        if turn.tokens > self.message_limit:
            raise MessageTooLong(turn.tokens, self.message_limit)
        await self._relieve()
        check_direction(self.state, KIND_OF_ROLE[turn.role])
        self.window.append_turn(turn)
        self.awaits_answer = AWAITS_AFTER.get(turn.role, self.awaits_answer)
        self.state = state_of(self.window, self.threshold.effective_threshold)
        await self._relieve()
        return turn

    async def _relieve(self) -> None:
        if self.config.auto_compress and self.state is ContextState.PRESSURED:
            target = min(self.config.target_pressure, self.threshold.effective_threshold)
            await self.compress(target, cause="pressure")

    async def compress(self, target: float, *, cause: str = "requested") -> CompressionResult:
        """Compress to a target; pages out when what must not be touched is too much alone.

        Raises:
            InvalidTransition: the state takes no compression.
            ArgumentInvalid: the target is outside 0..1.
        """
        check_direction(self.state, "compress")
        before = self.window
        result = await self._compressed(before, target, self.config.keep_recent)
        if not self._is_enough(result, cause):
            # What was spared as recent is spared no longer; a turn that waits for its answer still is.
            second = await self._compressed(result.window, target, self._waiting_turns(cause))
            result = replace(
                second, original_tokens=result.original_tokens, folded=merged(result.folded, second.folded)
            )
        await self._put_away(before, result.folded)
        self.window, self.state = result.window, ContextState.COMPRESSED
        self.compressions += 1
        audit = recorded(
            self.session_id, cause, before, result.window, result.folded, target, target_met=result.target_met
        )
        self.audits.append(audit)
        return result

    def _is_enough(self, result: CompressionResult, cause: str) -> bool:
        """Return whether the requested target is met or, under pressure, the window is below the threshold."""
        if cause == "requested":
            return result.target_met
        return fits(result.compressed_tokens, result.window, self.threshold.effective_threshold)

    def _waiting_turns(self, cause: str) -> int:
        newest = self.window.all_turns()[-1]
        return int(cause == "pressure" or newest.role in (TurnRole.USER, TurnRole.TOOL))

    async def _compressed(self, window: ContextWindow, target: float, keep_recent: int) -> CompressionResult:
        result = await ContextProjector(self.config.compression(keep_recent), self.summarizer).compress(window, target)
        return result if result.target_met else page_out(result, target * self.config.paging_share, keep_recent)

    async def _put_away(self, before: ContextWindow, folded: Sequence[FoldedTurn]) -> None:
        """Keep turns as they first came: a summary that is folded in turn is not worth keeping."""
        stored = {one.turn.resource_id: one.stored for one in folded if one.turn.resource_id not in before.folded}
        if stored:
            await self.store.put_turns(self.session_id, stored)

    async def expand(self, resource_ids: Sequence[str] | None = None) -> ExpansionResult:
        """Restore the folded turns, or the named ones, that the store still has.

        Raises:
            UnknownResource: no turn ever had this id. ArchiveCorrupted: the store has changed it.
        """
        wanted = tuple(self.window.folded) if resource_ids is None else tuple(resource_ids)
        stored = await self.store.get_turns(self.session_id, wanted)
        result = ContextProjector().expand(self.window, stored, wanted)
        self.window = result.window
        if result.restored:
            self.state = state_of(self.window, self.threshold.effective_threshold)
        return result

    def clear(self) -> None:
        """End all turns, those in the store included. Raises InvalidTransition."""
        check_direction(self.state, "clear")
        self.window, self.state, self.forgets = self.window.cleared(), ContextState.EMPTY, True
        self.awaits_answer = False

    def seek(self, position: int) -> None:
        """Move the focus. Raises ArgumentInvalid."""
        self.window = self.window.seek(position)

    def tag(self, resource_id: str, resource_class: ResourceClass, source: str = "tag") -> None:
        """Assign a class to a turn. Raises UnknownResource, LinearityError."""
        self.window.tag(resource_id, resource_class, source)

    def promote(self, resource_id: str, resource_class: ResourceClass, rationale: str = "promote") -> None:
        """Raise the class of a turn. Raises UnknownResource, LinearityError."""
        self.window.promote(resource_id, resource_class, rationale)

    async def drop(self, resource_id: str, rationale: str = "drop") -> None:
        """Take a DROPPABLE turn out; it is kept and recorded as by a compression.

        Raises:
            UnknownResource, LinearityError.
        """
        before = self.window
        self.window = before.copy()
        turn = self.window.drop(resource_id, rationale)
        folded = (folded_turn(turn, Folding.DROPPED, ResourceClass.DROPPABLE),)
        await self._put_away(before, folded)
        self.audits.append(recorded(self.session_id, "dropped", before, self.window, folded))

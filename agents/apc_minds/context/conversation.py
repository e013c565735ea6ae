"""The conversation of a session: its window in its state, what may be done to both, and how that composes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor
from typing import Final, Protocol

from pydantic import JsonValue

from apc_minds.context.compression import (
    PLACEHOLDER_ID,
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
    keeping,
    merged_folds,
    movable_turns,
    page_out,
    recorded,
)
from apc_minds.context.polynomial import KIND_OF_ROLE, VALID_DIRECTIONS, ContextState, check_direction, state_of
from apc_minds.context.turns import (
    ArgumentInvalid,
    CompositionRefused,
    ContextError,
    ContextStale,
    LinearityError,
    MessageTooLong,
    ResourceClass,
    Turn,
    TurnRole,
    UnknownResource,
)
from apc_minds.context.window import (
    DEFAULT_MAX_TOKENS,
    AdaptiveThreshold,
    ContextWindow,
    Folding,
    checked_fraction,
    checked_position,
    checked_size,
)
from apc_minds.text import ExtractiveSummarizer, Summarizer


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
    kept_share: float = 0.5
    """Of the longest message, the share that kept turns may take: marked ones, system turns, the user's first words."""

    def __post_init__(self) -> None:
        """Check the shares and limits. Raises ArgumentInvalid."""
        checked_fraction("target_pressure", self.target_pressure)
        checked_fraction("paging_share", self.paging_share)
        checked_fraction("kept_share", self.kept_share)
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
    """Whether the store forgets what it has of this session when the changes are taken over."""

    def copy(self) -> "Conversation":
        """Return the same conversation, to be changed apart; nothing is copied that grows."""
        return replace(self, window=self.window.copy(), audits=[], forgets=False)

    @property
    def message_limit(self) -> int:
        """Tokens of the longest turn that still fits when all that may be folded is folded."""
        kept = keeping(self.window, movable_turns(self.window), self.kept_tokens)
        return max(0, self._room(self.threshold) - kept.tokens)

    @property
    def kept_tokens(self) -> int:
        """Tokens that kept turns may take, however a task goes."""
        at_rest = self.threshold.update(task_progress=None, error_rate=0.0, loop_detected=False)
        return floor(self.config.kept_share * max(0, self._room(at_rest)))

    def _room(self, threshold: AdaptiveThreshold) -> int:
        """Return the tokens below a threshold beside the initial system prompt and a placeholder."""
        first = self.window.all_turns()[:1]
        pinned = sum(turn.tokens for turn in first if is_pinned(self.window, turn))
        return floor(self.window.max_tokens * threshold.effective_threshold) - pinned - PLACEHOLDER_TOKENS

    async def append(self, role: TurnRole | str, content: str, metadata: Mapping[str, JsonValue] | None = None) -> Turn:
        """Add a turn; with auto_compress the context is not PRESSURED when this returns.

        Raises:
            TurnInvalid: it cannot be stored. MessageTooLong: it cannot fit.
            ContextPressureError, InvalidTransition: the state does not take it.
            Exception: what the summarizer or the store raised.
        """
        turn = self.window.measured(role, content, metadata)
        is_long = turn.tokens > self._room(self.threshold) - self.kept_tokens
        if is_long and turn.tokens > self.message_limit:
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
                second, original_tokens=result.original_tokens, folded=merged_folds(result.folded, second.folded)
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
        if result.target_met:
            return result
        return page_out(result, target * self.config.paging_share, keep_recent, self.kept_tokens)

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

    async def recall(self, resource_id: str) -> Turn:
        """Return a turn as it first came, whether the window holds it or not; nothing changes.

        Raises:
            UnknownResource: no turn ever had this id, or the store has it no longer. ArchiveCorrupted: as expand.
        """
        if resource_id not in self.window.folded:
            return self.window.turn(resource_id)
        stored = await self.store.get_turns(self.session_id, [resource_id])
        return ContextProjector().expand(self.window, stored, [resource_id]).window.turn(resource_id)

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


# The composition grammar: operations of a session that compose, and are checked before they run.
#
# Source: docs/reference/conformance/context-engineering.md, section 3.1 (CONTEXT_OPERAD); docs/specification/agents.md
# section 4.

States = frozenset[ContextState]
ANY: Final[States] = frozenset(ContextState)
NON_EMPTY: Final[States] = ANY - {ContextState.EMPTY}


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known of a conversation before an operation runs: the type that operations map to one another."""

    states: States
    """Those it may be in."""
    most_turns: int
    classes: Mapping[str, ResourceClass]
    """Of each known id the lowest class that it may have."""
    next_ordinal: int
    auto_compress: bool

    @classmethod
    def of(cls, conversation: Conversation) -> "Outline":
        """Return what is known of a conversation as it stands."""
        window = conversation.window
        classes = {resource_id: window.linearity.get_class(resource_id) for resource_id in window.linearity}
        ordinal = window.next_ordinal
        return cls(frozenset({conversation.state}), len(window), classes, ordinal, conversation.config.auto_compress)

    def taking(self, kind: str) -> States:
        """Return those of its states that list an input.

        A session that compresses by itself is never found PRESSURED.
        """
        return frozenset(state for state in self._met() if kind in VALID_DIRECTIONS[state])

    @property
    def compressible(self) -> dict[str, ResourceClass]:
        """The classes after something that may compress: there may be a placeholder."""
        return {**self.classes, PLACEHOLDER_ID: ResourceClass.PRESERVED}

    def _met(self) -> States:
        if self.auto_compress and ContextState.PRESSURED in self.states:
            return self.states - {ContextState.PRESSURED} | {ContextState.COMPRESSED}
        return self.states


class Operation(Protocol):
    """One operation: what it makes of an outline, and what it does."""

    def outlined(self, outline: Outline) -> Outline:
        """Return the outline after it. Raises ContextError if it cannot run after what went before."""
        ...

    async def apply(self, conversation: Conversation) -> None:
        """Apply the operation to a session. Raises ContextError."""
        ...


class _Composable:
    """Lets an operation begin a composition."""

    __slots__ = ()

    def __rshift__(self: Operation, other: "Composition | Operation") -> "Composition":
        """Return the composition of this and then the other."""
        return compose(self, other)


@dataclass(frozen=True, slots=True)
class Append(_Composable):
    """Add a turn."""

    role: TurnRole
    content: str

    def outlined(self, outline: Outline) -> Outline:
        """Require a state that accepts this role; lead to ACCUMULATING, or beyond the threshold."""
        kind = KIND_OF_ROLE[TurnRole(self.role)]
        if not outline.taking(kind):
            raise ArgumentInvalid("role", f"{kind} is taken in none of {_names(outline.states)}")
        beyond = ContextState.COMPRESSED if outline.auto_compress else ContextState.PRESSURED
        return replace(
            outline,
            states=frozenset({ContextState.ACCUMULATING, beyond}),
            most_turns=outline.most_turns + 2,
            classes={**outline.compressible, f"t{outline.next_ordinal}": ResourceClass.DROPPABLE},
            next_ordinal=outline.next_ordinal + 1,
        )

    async def apply(self, conversation: Conversation) -> None:
        """Add it."""
        await conversation.append(self.role, self.content)


@dataclass(frozen=True, slots=True)
class Tag(_Composable):
    """Assign a class to a turn."""

    resource_id: str
    resource_class: ResourceClass

    def outlined(self, outline: Outline) -> Outline:
        """Require a known turn of no higher class."""
        return _raised(outline, self.resource_id, self.resource_class)

    async def apply(self, conversation: Conversation) -> None:
        """Assign it."""
        conversation.tag(self.resource_id, self.resource_class, "composition")


@dataclass(frozen=True, slots=True)
class Promote(_Composable):
    """Raise the class of a turn."""

    resource_id: str
    resource_class: ResourceClass

    def outlined(self, outline: Outline) -> Outline:
        """Require a known turn of no higher class."""
        return _raised(outline, self.resource_id, self.resource_class)

    async def apply(self, conversation: Conversation) -> None:
        """Raise it."""
        conversation.promote(self.resource_id, self.resource_class, "composition")


@dataclass(frozen=True, slots=True)
class Compress(_Composable):
    """Compress to a target pressure in 0..1."""

    target_pressure: float

    def outlined(self, outline: Outline) -> Outline:
        """Require a state that accepts a compression; lead to COMPRESSED."""
        checked_fraction("target_pressure", self.target_pressure)
        if not any("compress" in VALID_DIRECTIONS[state] for state in outline.states):
            raise ArgumentInvalid("compress", f"it is taken in none of {_names(outline.states)}")
        compressed = frozenset({ContextState.COMPRESSED})
        return replace(outline, states=compressed, most_turns=outline.most_turns + 1, classes=outline.compressible)

    async def apply(self, conversation: Conversation) -> None:
        """Compress."""
        await conversation.compress(self.target_pressure)


@dataclass(frozen=True, slots=True)
class Expand(_Composable):
    """Put folded turns back; no ids = all of them."""

    resource_ids: tuple[str, ...] = ()

    def outlined(self, outline: Outline) -> Outline:
        """Require known turns; the pressure afterwards is unknown."""
        for resource_id in self.resource_ids:
            if resource_id not in outline.classes:
                raise UnknownResource(resource_id)
        states = outline.states | {ContextState.ACCUMULATING, ContextState.PRESSURED}
        return replace(outline, states=states, most_turns=max(outline.most_turns, len(outline.classes)))

    async def apply(self, conversation: Conversation) -> None:
        """Restore the turns."""
        await conversation.expand(self.resource_ids or None)


@dataclass(frozen=True, slots=True)
class Seek(_Composable):
    """Move the focus."""

    position: int

    def outlined(self, outline: Outline) -> Outline:
        """Require a position that the window may have."""
        checked_position(self.position, outline.most_turns)
        return outline

    async def apply(self, conversation: Conversation) -> None:
        """Move it."""
        conversation.seek(self.position)


@dataclass(frozen=True, slots=True)
class Composition:
    """Operations, one after the other. `>>` composes and is associative; IDENTITY changes nothing."""

    operations: tuple[Operation, ...] = ()

    def __rshift__(self, other: "Composition | Operation") -> "Composition":
        """Return the composition of this and then the other."""
        return Composition(self.operations + compose(other).operations)

    def check(self, conversation: Conversation) -> Outline:
        """Return what is known of the conversation afterwards, without running anything.

        What it refuses would fail whatever the texts and the pressure are. What it lets pass may still meet a
        pressure or a length that an operation refuses; the session then takes nothing of it over.

        Raises:
            CompositionRefused: an operation cannot run after those before it.
        """
        outline = Outline.of(conversation)
        for step, operation in enumerate(self.operations):
            try:
                outline = operation.outlined(outline)
            except (ContextError, ValueError) as error:
                raise CompositionRefused(step, type(operation).__name__, str(error)) from error
        return outline


IDENTITY: Final = Composition()


def compose(*parts: Composition | Operation) -> Composition:
    """Return operations and compositions as one, in their order."""
    operations: list[Operation] = []
    for part in parts:
        operations.extend(part.operations if isinstance(part, Composition) else (part,))
    return Composition(tuple(operations))


@dataclass(frozen=True, slots=True)
class Typing:
    """The states in which an operation may start, and those in which it may end."""

    operation: type[Operation]
    domain: States
    codomain: States


def _listing(kind: str) -> States:
    return frozenset(state for state, kinds in VALID_DIRECTIONS.items() if kind in kinds)


CONTEXT_OPERAD: Final[Mapping[str, Typing]] = {
    "append": Typing(Append, frozenset().union(*map(_listing, KIND_OF_ROLE.values())), NON_EMPTY),
    "tag": Typing(Tag, ANY, ANY),
    "promote": Typing(Promote, ANY, ANY),
    "compress": Typing(Compress, _listing("compress"), frozenset({ContextState.COMPRESSED})),
    "expand": Typing(Expand, ANY, ANY),
    "seek": Typing(Seek, ANY, ANY),
}
"""The operations of the grammar with their types."""


def _raised(outline: Outline, resource_id: str, resource_class: ResourceClass) -> Outline:
    known = outline.classes.get(resource_id)
    if known is None:
        raise UnknownResource(resource_id)
    if resource_class < known:
        raise LinearityError(resource_id, f"it is {known.name}, and a class never sinks to {resource_class.name}")
    return replace(outline, classes={**outline.classes, resource_id: resource_class})


def _names(states: States) -> str:
    return ", ".join(sorted(state.name for state in states))

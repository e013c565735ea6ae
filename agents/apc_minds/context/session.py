"""A session of a context: its stored form, what it shows, and what changes it, as a whole or not at all."""

import asyncio
from bisect import bisect
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, Unpack

import orjson
from pydantic import JsonValue

from apc_minds.context.compression import CompressionAudit, CompressionResult, ExpansionResult, OnCompression
from apc_minds.context.conversation import ContextStore, Conversation, InMemoryContextStore, SessionConfig
from apc_minds.context.polynomial import VALID_DIRECTIONS, ComponentRenderer, ContextState, state_of
from apc_minds.context.prompt_assembly import PromptBuilder, default_prompts
from apc_minds.context.turns import (
    ArgumentInvalid,
    ContextPressureError,
    ContextStoreError,
    ResourceClass,
    Turn,
    TurnRole,
)
from apc_minds.context.window import AdaptiveThreshold, Clock, ContextWindow, Folding, utc_now
from apc_minds.text import ExtractiveSummarizer, Summarizer, TokenCounter

if TYPE_CHECKING:
    from apc_minds.context.conversation import Composition

DOCUMENT_VERSION = 1


def encode_session(conversation: Conversation) -> bytes:
    """Return a conversation as a document of this version."""
    document = {
        "version": DOCUMENT_VERSION,
        "state": conversation.state.name,
        "threshold": conversation.threshold.to_document(),
        "compressions": conversation.compressions,
        "awaits_answer": conversation.awaits_answer,
        "window": conversation.window.to_document(),
    }
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def restore_session(conversation: Conversation, stored: bytes, clock: Clock) -> None:
    """Fill an empty conversation from a document.

    Raises:
        ContextStoreError: what is stored is no session of this version.
    """
    session_id, max_tokens = conversation.session_id, conversation.config.max_tokens
    try:
        document = orjson.loads(stored)
        if document["version"] != DOCUMENT_VERSION:
            raise ContextStoreError(
                f"session {session_id} has version {document['version']}: this reads {DOCUMENT_VERSION}"
            )
        window = ContextWindow.from_document(document["window"], counter=conversation.window.counter, clock=clock)
        conversation.state = ContextState[document["state"]]
        conversation.threshold = AdaptiveThreshold(**document["threshold"])
        conversation.compressions = document["compressions"]
        conversation.awaits_answer = bool(document.get("awaits_answer"))  # older documents have none
    except (ValueError, KeyError, TypeError, AttributeError, ArgumentInvalid) as error:
        raise ContextStoreError(f"what is stored of session {session_id} is no context: {error!r}") from error
    conversation.window = window.resized(max_tokens)
    if window.max_tokens != max_tokens and conversation.state is not ContextState.EMPTY:
        conversation.state = state_of(conversation.window, conversation.threshold.effective_threshold)


# What a model is told: the turns, the gists of those that had to go though they are kept, and a note where turns were
# dropped, so that a question without its answer is not read as unanswered.
#
# Source: docs/reference/conformance/context-engineering.md, section 2.2.

NOTE_ID: Final = "dropped"
"""The resource_id of every note; a note is in no window."""


def with_gaps_told(window: ContextWindow) -> list[Turn]:
    """Return the turns of a window and its gists, and a note in each place where turns were dropped.

    One note tells of all places when the notes would lead above max_tokens; none does when even that one would.
    """
    turns = sorted([*window.all_turns(), *window.gists.values()], key=lambda turn: turn.ordinal)
    gaps = _gaps(window, turns) if turns else []
    for places in (gaps, [[one for gap in gaps for one in gap]] if gaps else []):
        notes = [_note(window, gap) for gap in places]
        if window.total_tokens + sum(note.tokens for note in notes) <= window.max_tokens:
            return sorted([*turns, *notes], key=lambda turn: turn.ordinal)
    return turns


def _gaps(window: ContextWindow, turns: Iterable[Turn]) -> list[list[tuple[int, str]]]:
    """Return ordinals and ids of dropped turns, by the place between the remaining turns."""
    left, dropped = [turn.ordinal for turn in turns], Folding.DROPPED
    gaps: dict[int, list[tuple[int, str]]] = {}
    for ordinal, key in sorted((fold.ordinal, key) for key, fold in window.folded.items() if fold.how is dropped):
        gaps.setdefault(bisect(left, ordinal), []).append((ordinal, key))
    return list(gaps.values())


def _note(window: ContextWindow, gap: list[tuple[int, str]]) -> Turn:
    (ordinal, first), (_, last) = gap[0], gap[-1]
    which = f"turn, {first}, is" if len(gap) == 1 else f"turns, {first} to {last}, are"
    content = f"[{len(gap)} {which} left out]"
    turns = window.all_turns()
    since = next((turn.timestamp for turn in reversed(turns) if turn.ordinal < ordinal), None)
    return Turn(
        role=TurnRole.SYSTEM,
        content=content,
        timestamp=since or turns[0].timestamp,
        resource_id=NOTE_ID,
        ordinal=ordinal,
        tokens=window.counter.count(content),
    )


# What a session shows: its state, its props for a frontend, and its prompts for a model.


class ReadableSession:
    """The readable half of a session; nothing here changes it."""

    def __init__(self, conversation: Conversation, prompts: PromptBuilder) -> None:
        self._conversation = conversation
        self._prompts = prompts
        self._renderer = ComponentRenderer()

    @property
    def window(self) -> ContextWindow:
        """The window as it is now; what is done to it does not reach the session."""
        return self._conversation.window.copy()

    @property
    def state(self) -> ContextState:
        """Where it stands in the polynomial."""
        return self._conversation.state

    @property
    def pressure(self) -> float:
        """Tokens used / max_tokens, 0..1."""
        return self._conversation.window.pressure

    @property
    def threshold(self) -> AdaptiveThreshold:
        """When it is compressed."""
        return self._conversation.threshold

    @property
    def compressions(self) -> int:
        """How often it was compressed."""
        return self._conversation.compressions

    @property
    def message_limit(self) -> int:
        """Tokens of the longest turn that is taken."""
        return self._conversation.message_limit

    @property
    def can_send(self) -> bool:
        """Whether the user may speak: not while PRESSURED."""
        return self._takes("user_turn")

    @property
    def can_compress(self) -> bool:
        """Whether it can be compressed: not while EMPTY."""
        return self._takes("compress")

    @property
    def can_clear(self) -> bool:
        """Whether there is something to clear: not while EMPTY."""
        return self._takes("clear")

    def _takes(self, kind: str) -> bool:
        return kind in VALID_DIRECTIONS[self.state]

    @property
    def is_compressed(self) -> bool:
        """Whether the last thing that happened to it was a compression."""
        return self.state is ContextState.COMPRESSED

    @property
    def is_thinking(self) -> bool:
        """Whether what the user, or a tool, said last waits for an answer."""
        return self._conversation.awaits_answer

    def render(self) -> dict[str, Any]:
        """Return the props of a chat component; never a prompt."""
        return self._renderer.render_chat(self)

    def build_prompt(
        self,
        agent_type: str,
        eigenvectors: Mapping[str, float] | None = None,
        constraints: Sequence[str] = (),
        **details: str,
    ) -> str:
        """Return the system prompt, and the conversation below it as `role: content`.

        For a model, never for a frontend.

        Raises:
            PromptInvalid: as PromptBuilder.build_system_prompt.
            ContextPressureError: the window is above max_tokens: compress first.
        """
        system = self.build_system_prompt(agent_type, eigenvectors, constraints, **details)
        turns = [f"{turn.role.value}: {turn.content}" for turn in self.turns_for_model()]
        return "\n\n".join([system, *turns])

    def build_system_prompt(
        self,
        agent_type: str,
        eigenvectors: Mapping[str, float] | None = None,
        constraints: Sequence[str] = (),
        **details: str,
    ) -> str:
        """Return the system prompt alone. Raises PromptInvalid."""
        return self._prompts.build_system_prompt(agent_type, eigenvectors or {}, constraints, **details)

    def turns_for_model(self) -> list[Turn]:
        """Return what a model may be given, never above max_tokens; gists and notes tell of turns that are folded.

        Raises:
            ContextPressureError: the window is above max_tokens: compress first.
        """
        window = self._conversation.window
        if window.overflow_tokens:
            raise ContextPressureError("prompt")
        return with_gaps_told(window)


# A context that lives across requests: opened from a store, changed as a whole or not at all, saved.
#
# Source: docs/reference/conformance/context-engineering.md, sections 3.1, 5.1 and 5.2; docs/specification/agents.md
# section 4.


class SessionOptions(TypedDict, total=False):
    """What a session may be given beside its store; as in the constructor."""

    config: SessionConfig
    summarizer: Summarizer
    counter: TokenCounter
    prompts: PromptBuilder
    clock: Clock
    on_compression: OnCompression


async def _unheard(audit: CompressionAudit) -> None:
    """Ignore a compression: the default when nobody listens."""


class ContextSession(ReadableSession):
    """Cross-request state of one conversation.

    Every change happens as a whole or not at all: whatever raises leaves the session as it was. Changes wait for one
    another. What a compression folds is in the store, and told to `on_compression`, before it leaves the window.
    `save` keeps the session; until then a restart finds it as it was saved last.
    """

    def __init__(
        self,
        session_id: str,
        *,
        store: ContextStore | None = None,
        config: SessionConfig | None = None,
        summarizer: Summarizer | None = None,
        counter: TokenCounter | None = None,
        prompts: PromptBuilder | None = None,
        clock: Clock = utc_now,
        on_compression: OnCompression = _unheard,
    ) -> None:
        """Make an empty session; `open` finds a saved one.

        Args:
            session_id: names it in the store and in the audit.
            store: where it is kept; default one that ends with the process.
            summarizer: shortens REQUIRED turns; default an extract that asks no model.
            counter: counts tokens; default an estimate.
            prompts: the templates; default those of the package.
            clock: gives the time of a new turn. In a handler `lambda: ctx.packet.created_at` makes the same turns, and
                the same audit, when it runs again after a crash.
            on_compression: told of every compression before it takes effect.
        """
        config = config or SessionConfig()
        self.session_id = session_id
        self.config = config
        self._store = store or InMemoryContextStore()
        self._on_compression = on_compression
        self._clock = clock
        self._lock = asyncio.Lock()
        self._revision = 0
        conversation = Conversation(
            session_id=session_id,
            window=ContextWindow(config.max_tokens, counter=counter, clock=clock),
            store=self._store,
            config=config,
            summarizer=summarizer or ExtractiveSummarizer(counter),
        )
        super().__init__(conversation, prompts or default_prompts())

    @classmethod
    async def open(cls, session_id: str, *, store: ContextStore, **options: Unpack[SessionOptions]) -> Self:
        """Return the session as it was saved last, or an empty one; `options` as in the constructor.

        With another `max_tokens` than it was saved with, the state follows the pressure in the new window.

        Raises:
            ContextStoreError: what the store has is no session of this version.
        """
        session = cls(session_id, store=store, **options)
        loaded = await store.load(session_id)
        if loaded is not None:
            document, session._revision = loaded
            restore_session(session._conversation, document, session._clock)
        return session

    async def save(self) -> int:
        """Keep the session; returns its revision.

        Raises:
            ContextStale: another process has saved it since it was opened.
        """
        async with self._lock:
            document = encode_session(self._conversation)
            self._revision = await self._store.save(self.session_id, document, self._revision)
            return self._revision

    @property
    def revision(self) -> int:
        """How often it was saved; 0 = never."""
        return self._revision

    # What changes it.

    async def add_user_turn(self, message: str, metadata: Mapping[str, JsonValue] | None = None) -> Turn:
        """Add what the user says; compresses before the answer if need be.

        Raises:
            TurnInvalid: it cannot be stored. MessageTooLong: it cannot fit.
            ContextPressureError, InvalidTransition: the state does not take it.
        """
        return await self._append(TurnRole.USER, message, metadata)

    async def add_assistant_turn(self, response: str, metadata: Mapping[str, JsonValue] | None = None) -> Turn:
        """Add what the agent answers. Raises as add_user_turn."""
        return await self._append(TurnRole.ASSISTANT, response, metadata)

    async def add_tool_turn(self, result: str, metadata: Mapping[str, JsonValue] | None = None) -> Turn:
        """Add what a tool gave. Raises as add_user_turn."""
        return await self._append(TurnRole.TOOL, result, metadata)

    async def add_system_turn(self, content: str, metadata: Mapping[str, JsonValue] | None = None) -> Turn:
        """Add what the system says; the first turn of all is the initial system prompt. Raises as add_user_turn."""
        return await self._append(TurnRole.SYSTEM, content, metadata)

    async def _append(self, role: TurnRole, content: str, metadata: Mapping[str, JsonValue] | None) -> Turn:
        async with self._changing() as conversation:
            return await conversation.append(role, content, metadata)

    async def compress(self, target_pressure: float | None = None) -> CompressionResult:
        """Compress, by default to the target of automatic compressions.

        Raises:
            InvalidTransition: there are no turns.
            ArgumentInvalid: the target is outside 0..1.
        """
        target = self.config.target_pressure if target_pressure is None else target_pressure
        async with self._changing() as conversation:
            return await conversation.compress(target)

    async def compress_if_needed(self) -> bool:
        """Compress if the pressure is above the threshold and turns came since; tells whether it did."""
        async with self._changing() as conversation:
            is_above = conversation.window.pressure > conversation.threshold.effective_threshold
            if not is_above or conversation.state in (ContextState.EMPTY, ContextState.COMPRESSED):
                return False
            await conversation.compress(self.config.target_pressure, cause="pressure")
            return True

    async def expand(self, resource_ids: Sequence[str] | None = None) -> ExpansionResult:
        """Restore folded turns from the store, all or the named ones.

        Raises:
            UnknownResource: no turn ever had this id. ArchiveCorrupted: the store has changed it.
        """
        async with self._changing() as conversation:
            return await conversation.expand(resource_ids)

    async def recall(self, resource_id: str) -> Turn:
        """Return a turn as it first came, whether the window holds it or not; nothing changes.

        Raises:
            UnknownResource: no turn ever had this id, or the store has it no longer. ArchiveCorrupted: as expand.
        """
        async with self._lock:
            return await self._conversation.recall(resource_id)

    async def clear(self) -> None:
        """End the conversation and forget what was folded. Raises InvalidTransition."""
        async with self._changing() as conversation:
            conversation.clear()

    async def seek(self, position: int) -> None:
        """Move the focus. Raises ArgumentInvalid."""
        async with self._changing() as conversation:
            conversation.seek(position)

    async def tag(self, resource_id: str, resource_class: ResourceClass, source: str = "tag") -> None:
        """Assign a class to a turn. Raises UnknownResource, LinearityError."""
        async with self._changing() as conversation:
            conversation.tag(resource_id, resource_class, source)

    async def promote(self, resource_id: str, resource_class: ResourceClass, rationale: str = "promote") -> None:
        """Raise the class of a turn. Raises UnknownResource, LinearityError."""
        async with self._changing() as conversation:
            conversation.promote(resource_id, resource_class, rationale)

    async def drop(self, resource_id: str, rationale: str = "drop") -> None:
        """Take a DROPPABLE turn out of the window; `expand` brings it back. Raises UnknownResource, LinearityError."""
        async with self._changing() as conversation:
            await conversation.drop(resource_id, rationale)

    async def update_threshold(self, **changes: float | bool | None) -> AdaptiveThreshold:
        """Tell how the task goes; takes effect with the next turn. Raises ArgumentInvalid."""
        async with self._changing() as conversation:
            conversation.threshold = conversation.threshold.update(**changes)
            return conversation.threshold

    async def run(self, composition: "Composition") -> None:
        """Run a composition of operations, all or none.

        Raises:
            CompositionRefused: it cannot run here; nothing was tried.
            ContextError: what one of its operations raised; nothing has changed.
        """
        async with self._changing() as conversation:
            composition.check(conversation)
            for operation in composition.operations:
                await operation.apply(conversation)

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[Conversation]:
        async with self._lock:
            changed = self._conversation.copy()
            yield changed
            for audit in changed.audits:
                await self._on_compression(audit)
            if changed.forgets:
                await self._store.delete_turns(self.session_id)
            self._conversation = changed

"""A context that lives across requests: opened from a store, changed as a whole or not at all, saved.

Source: docs/reference/conformance/context-engineering.md, sections 3.1, 5.1 and 5.2; docs/specification/agents.md
section 4.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

from pydantic import JsonValue

from apc_agents.context.audit import CompressionAudit, OnCompression
from apc_agents.context.compression.projector import CompressionResult, ExpansionResult
from apc_agents.context.conversation import Conversation, SessionConfig
from apc_agents.context.polynomial import ContextState
from apc_agents.context.prompt_assembly import PromptBuilder, default_prompts
from apc_agents.context.readable_session import ReadableSession
from apc_agents.context.session_document import encode_session, restore_session
from apc_agents.context.store import ContextStore, InMemoryContextStore
from apc_agents.context.window.linearity import ResourceClass
from apc_agents.context.window.threshold import AdaptiveThreshold
from apc_agents.context.window.turns import Turn, TurnRole
from apc_agents.context.window.window import Clock, ContextWindow, utc_now
from apc_agents.text.summarizing import ExtractiveSummarizer, Summarizer
from apc_agents.text.tokens import TokenCounter

if TYPE_CHECKING:
    from apc_agents.context.operad import Composition


class SessionOptions(TypedDict, total=False):
    """What a session may be given beside its store; as in the constructor."""

    config: SessionConfig
    summarizer: Summarizer
    counter: TokenCounter
    prompts: PromptBuilder
    clock: Clock
    on_compression: OnCompression


async def _unheard(audit: CompressionAudit) -> None:
    """Ignore a compression: nobody listens."""


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

"""What the SDK asks of the mind of an agent, which stands above it: memory, tools, the situation.

The port of tasks is `apc_agents.task_port`. `apc_minds` is what is plugged in; a worker runs without it, and its
handlers then have no memory, no tasks and no situation.

Source of the memory: docs/reference/conformance/memory.md sections 3 and 4.1; docs/specification/agents.md section 3.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, cast

import asyncpg
import orjson
from asyncpg.pool import PoolConnectionProxy
from pydantic import Field, ValidationError

from apc_agents.errors import (
    AgentError,
    ConversationInvalid,
    MemoryArgumentInvalid,
    MemoryUnavailable,
    Retry,
    StaleRevision,
    ValueInvalid,
)
from apc_agents.json_values import checked_text, json_value
from apc_contracts.agent import AgentContext, ContextMessage, SecurityLevel
from apc_contracts.contract_model import Model, Time
from apc_contracts.packet import Actor, Packet

if TYPE_CHECKING:
    from apc_agents.emitter import Emitter
    from apc_agents.task_port import TaskStore
    from apc_bus.settings import RelevanceSettings, WorkerSettings

MIND: Final = "apc_minds"
"""The package that is looked for."""
DEFAULT_OWNER: Final = "apc"
"""The owner of a deployment that names none."""
Connection = asyncpg.Connection | PoolConnectionProxy

# What may be stored: JSON, and nothing that JSONB would change or refuse.
#
# Pickle is not supported: anyone who may write a pickled value may run code wherever it is read.

MAX_VALUE_BYTES: Final = 16 * 1024 * 1024
MAX_ID_BYTES: Final = 512
"""Of a session, user, agent, owner or key: three of them stand in one index row, which takes 2.7 kB."""


def encoded(value: Any, path: str = "$") -> bytes:
    """Return the value as JSON with sorted keys.

    Raises:
        ValueInvalid: it holds something that is not JSON, or that PostgreSQL does not keep (apc_agents.json_values);
            or it has more than 16 MiB.
    """
    document = orjson.dumps(json_value(value, path, ValueInvalid), option=orjson.OPT_SORT_KEYS)
    if len(document) > MAX_VALUE_BYTES:
        raise ValueInvalid(path, f"it has {len(document)} bytes and {MAX_VALUE_BYTES} fit: store it as an artifact")
    return document


def checked_id(place: str, value: str) -> str:
    """Return an id of a session, user, agent, owner or key. Raises ArgumentInvalid."""
    checked_text(value, place, MemoryArgumentInvalid)
    if not 0 < len(value.encode()) <= MAX_ID_BYTES:
        raise MemoryArgumentInvalid(place, f"it has {len(value.encode())} bytes: 1 to {MAX_ID_BYTES} are needed")
    return value


def state_name(agent_id: str, owner_id: str, key: str) -> str:
    """Return an agent state, for a message."""
    return f"state {key} of agent {agent_id} for {owner_id}"


CONVERSATION_VERSION: Final = "1.0"
"""Of the schema below; column `version` of the Agent Memory Protocol."""
MAX_MESSAGE_BYTES: Final = 256 * 1024
"""Of one message's text, in UTF-8: as much as a packet holds."""
MAX_SUMMARY_LENGTH: Final = 500
"""Characters of a summary in a listing."""


MADE_BY: Final = "made_by"
"""In the metadata of a message that the reader's login did not write: the agent whose login did."""


class ConversationMessage(Model):
    """One message. `metadata` is any JSON; `sender_id` in it says who spoke, beyond the role."""

    role: str
    content: str
    timestamp: Time
    metadata: Mapping[str, Any] = {}


class ConversationContext(Model):
    """The messages of one session, a value: what changes it gives a new one.

    `revision` is None for an upsert; a number for compare-and-set: what the store holds must have it (0 = nothing is
    there yet), and has the next number afterwards. It is no part of the stored document.
    """

    session_id: str = Field(min_length=1)
    messages: tuple[ConversationMessage, ...] = ()
    metadata: Mapping[str, Any] = {}
    agent_participants: tuple[str, ...] = ()
    version: Literal["1.0"] = CONVERSATION_VERSION
    revision: int | None = Field(default=None, ge=0, exclude=True)

    def written_by(self, login: str) -> Self:
        """Return the conversation with each message marked as that of another login, agent.<agent_id>."""
        marked = (
            message.model_copy(update={"metadata": {**message.metadata, MADE_BY: login}}) for message in self.messages
        )
        return self.model_copy(update={"messages": tuple(marked)})

    @property
    def own(self) -> Self:
        """The conversation without what other logins of the database have added."""
        kept = tuple(message for message in self.messages if MADE_BY not in message.metadata)
        return self if len(kept) == len(self.messages) else self.model_copy(update={"messages": kept})

    def with_message(self, message: ConversationMessage, participant: str | None = None) -> Self:
        """Return the conversation with one more message, and with this agent among the participants."""
        grown = self.model_copy(update={"messages": (*self.messages, message)})
        return grown if participant is None else grown.with_participant(participant)

    def with_participant(self, participant: str) -> Self:
        """Return the conversation with this agent among the participants."""
        if participant in self.agent_participants:
            return self
        return self.model_copy(update={"agent_participants": (*self.agent_participants, participant)})

    def shortened(self, kept_messages: int, kept_bytes: int) -> Self:
        """Return it without the oldest messages that are too many; `metadata.dropped` counts them."""
        messages, size = list[ConversationMessage](), 0
        for message in reversed(self.messages[-kept_messages:]):
            size += len(message.content.encode())
            if messages and size > kept_bytes:
                break
            messages.append(message)
        gone = len(self.messages) - len(messages)
        if not gone:
            return self
        dropped = int(self.metadata.get("dropped", 0)) + gone
        return self.model_copy(
            update={"messages": tuple(messages[::-1]), "metadata": {**self.metadata, "dropped": dropped}}
        )

    @property
    def summary(self) -> str | None:
        """`metadata.summary`, if it is text: what a listing shows."""
        summary = self.metadata.get("summary")
        return summary[:MAX_SUMMARY_LENGTH] if isinstance(summary, str) else None

    def to_document(self) -> dict[str, Any]:
        """Return JSON: session_id, messages, metadata, agent_participants, version."""
        messages = [
            {
                "role": message.role,
                "content": message.content,
                "timestamp": message.timestamp.isoformat(),
                "metadata": dict(message.metadata),
            }
            for message in self.messages
        ]
        return {
            "session_id": self.session_id,
            "messages": messages,
            "metadata": dict(self.metadata),
            "agent_participants": list(self.agent_participants),
            "version": self.version,
        }

    def to_bytes(self) -> bytes:
        """Return the document as JSON. Raises ValueInvalid, and ConversationInvalid for a message that is too long."""
        for number, message in enumerate(self.messages):
            place = f"messages[{number}]"
            checked_text(message.content, f"{place}.content", ValueInvalid)
            if (size := len(message.content.encode())) > MAX_MESSAGE_BYTES:
                raise ConversationInvalid(
                    f"{place}.content", f"it has {size} bytes and {MAX_MESSAGE_BYTES} fit: shorten it, or send parts"
                )
        try:
            return encoded(self.to_document(), "")
        except ValueInvalid as error:
            raise ValueInvalid(error.path.lstrip(".") or "$", str(error).partition(": ")[2]) from None

    @classmethod
    def from_document(cls, document: Any, revision: int | None = None) -> Self:
        """Return a conversation from its document. Raises ConversationInvalid with the path of what does not fit."""
        try:
            return cls.model_validate(document).model_copy(update={"revision": revision})
        except ValidationError as invalid:
            first = invalid.errors(include_url=False)[0]
            path = ".".join(str(part) for part in first["loc"]) or "$"
            raise ConversationInvalid(path, f"{first['msg']}, and this is schema {CONVERSATION_VERSION}") from None


@dataclass(frozen=True, slots=True)
class NewMessages:
    """What was said in a session since its state was saved last.

    `user_id` is whose conversation it is if nobody began it yet; `is_restart` forgets what was said before.
    """

    session_id: str
    user_id: str
    participant: str
    messages: tuple[ConversationMessage, ...] = ()
    is_restart: bool = False

    def added_to(self, kept: ConversationContext | None) -> ConversationContext:
        """Return the conversation with these messages, each once, within the bounds of the settings."""
        checked_id("session_id", self.session_id)
        checked_id("user_id", self.user_id)
        if kept is None:
            kept = ConversationContext(session_id=self.session_id, metadata={"user_id": self.user_id})
        if self.is_restart:
            kept = kept.model_copy(update={"messages": ()})
        known = {message.metadata.get("message_id") for message in kept.messages}
        fresh = (one for one in self.messages if one.metadata.get("message_id") not in known)
        grown = kept.with_participant(self.participant)
        for message in fresh:
            grown = grown.with_message(message)
        from apc_bus.settings import SituationSettings

        settings = SituationSettings()
        return grown.shortened(settings.kept_messages, settings.kept_bytes)


# The memory of agents. The eight methods of the document come first, as coroutines with its argument names; what comes
# after them is ours.


@dataclass(frozen=True, slots=True)
class Removed:
    """What was deleted, in rows."""

    conversations: int
    agent_states: int


class BaseMemoryStore(ABC):
    """Conversations and agent states of one owner. What another owner has stored is not there, and cannot be touched.

    Values are JSON (`apc_minds.memory.conversation`) and come back as copies; what a call wrote is durable when it
    returns, as far as the store is. Every method raises MemoryUnavailable when the store does not answer, and
    ArgumentInvalid for an id that is empty or longer than 512 bytes.
    """

    def __init__(self, owner: str) -> None:
        self.owner = checked_id("owner", owner)

    @abstractmethod
    async def store_conversation(self, session_id: str, user_id: str, conversation: ConversationContext) -> None:
        """Store a conversation, or replace it as a whole.

        With `conversation.revision` None it is replaced whatever is there. With a number only if what is there has
        this revision (0 = nothing is there); it then has the next one.

        Raises:
            ConversationInvalid: it is of another session, or a message is longer than 256 KiB.
            ValueInvalid: something in it is not JSON, or the whole is longer than 16 MiB.
            OwnerForeign: the session is another owner's or another user's.
            StaleRevision: what is there has another revision.
        """

    @abstractmethod
    async def retrieve_conversation(self, session_id: str) -> ConversationContext | None:
        """Return the conversation with its revision; None when there is none.

        Raises:
            ConversationInvalid: it was written by a later schema.
        """

    @abstractmethod
    async def delete_conversation(self, session_id: str) -> bool:
        """Delete a conversation; True also when there was none."""

    @abstractmethod
    async def list_conversations_for_user(
        self, user_id: str, limit: int = 100, offset: int = 0
    ) -> list[dict[str, Any]]:
        """Return metadata of a user's conversations, most recently updated first, without messages.

        Each has session_id, user_id, created_at, last_updated, summary (or None), message_count, version, revision.

        Raises:
            ArgumentInvalid: limit is not in 1..1000, or offset is below 0.
        """

    async def store_agent_state(self, agent_id: str, owner_id: str, key: str, state_data: Any) -> None:
        """Store one value, or replace it. Raises ValueInvalid, OwnerForeign."""
        await self.store_agent_states(agent_id, owner_id, {key: state_data})

    async def retrieve_agent_state(self, agent_id: str, owner_id: str, key: str) -> Any | None:
        """Return the value; None if there is none."""
        stored = await self.load_agent_state(agent_id, owner_id, key)
        return None if stored is None else stored[0]

    @abstractmethod
    async def delete_agent_state(self, agent_id: str, owner_id: str, key: str) -> bool:
        """Delete a value; True also when there was none."""

    @abstractmethod
    async def get_all_agent_states(self, agent_id: str, owner_id: str) -> dict[str, Any]:
        """Return every value by key, in the order of the keys."""

    @abstractmethod
    def for_owner(self, owner: str) -> Self:
        """Return a store of another owner over the same memory."""

    @abstractmethod
    async def load_agent_state(self, agent_id: str, owner_id: str, key: str) -> tuple[Any, int] | None:
        """Return the value and its revision; None when there is none."""

    @abstractmethod
    async def save_agent_state(
        self,
        agent_id: str,
        owner_id: str,
        key: str,
        state_data: Any,
        revision: int,
        messages: NewMessages | None = None,
    ) -> int:
        """Compare and set: replace the value if it has this revision (0 = none is there); returns the new revision.

        `messages` are added to their conversation in the same transaction.

        Raises:
            ValueInvalid, OwnerForeign. StaleRevision: it has another one.
        """

    @abstractmethod
    async def store_agent_states(self, agent_id: str, owner_id: str, states: Mapping[str, Any]) -> None:
        """Store several values, all or none. Raises as store_agent_state."""

    @abstractmethod
    async def get_agent_states(self, agent_id: str, owner_id: str, keys: Sequence[str]) -> dict[str, Any]:
        """Return those of the values that are there, by key."""

    @abstractmethod
    async def delete_agent_states(self, agent_id: str, owner_id: str, prefix: str) -> int:
        """Delete every value whose key begins so; returns how many there were."""

    @abstractmethod
    async def search_conversations(
        self, user_id: str, query: str, limit: int = 100, offset: int = 0
    ) -> list[dict[str, Any]]:
        """Return the conversations that match the query, best first, each with `rank` and `excerpt`.

        The query has words, "phrases", OR between alternatives, -without, and pum* for all words that begin so. Words
        are compared by their stems in APC_LANGUAGE, without case and accents. Raises ArgumentInvalid.
        """

    @abstractmethod
    async def forget_before(self, moment: datetime) -> Removed:
        """Delete everything last written before this time. Raises ArgumentInvalid: the time has no offset."""

    @abstractmethod
    def export_user(self, user_id: str) -> AsyncIterator[dict[str, Any]]:
        """Yield everything that is stored of a user, one JSON record each.

        `{"kind": "conversation", "created_at", "last_updated", "revision", "conversation"}` and `{"kind":
        "agent_state", "agent_id", "owner_id", "key", "created_at", "last_updated", "revision", "state"}`. The states
        are those whose owner_id is the user or one of the user's conversations.
        """

    @abstractmethod
    async def erase_user(self, user_id: str) -> Removed:
        """Delete what export_user gives, all of it or nothing."""


# Tools, the situation, and the mind that gives all of it.


class Tools(Protocol):
    """What the actions and the tasks of an agent may use."""

    @property
    def tools(self) -> Mapping[str, Any]:
        """Every tool by name."""
        ...


class SnapshotSource(Protocol):
    """Keeps the conversations of sessions, and builds the context objects of packets from them.

    Every method that awaits raises MemoryUnavailable, and StaleRevision when others keep writing.
    """

    def heard(self, packet: Packet) -> ContextMessage:
        """Return a packet as a message of its conversation."""
        ...

    async def assemble(
        self, packet: Packet, agent_id: str, *, focus: Sequence[str] = (), anomalies: Sequence[str] = ()
    ) -> AgentContext:
        """Return the situation of an agent that is handed this packet.

        `focus` is what the agent cares about in any case, `anomalies` what is wrong right now. Raises Reject: the
        packet says something of its context that does not fit the protocol.
        """
        ...

    async def record(self, packet: Packet, participant: str) -> None:
        """Add a packet that the agent `participant` was handed, or has emitted, to its conversation, once."""
        ...

    async def pass_over(self, packet: Packet, agent_id: str) -> None:
        """Keep a packet that the agent does not take out of its later snapshots."""
        ...


class Mind(Protocol):
    """What stands above the SDK; the package `apc_minds` is one. `pool` None = what it keeps ends with the process."""

    def memory_store(self, pool: asyncpg.Pool | None = None) -> BaseMemoryStore:
        """Return the memory of a worker: with a pool it waits for a database that is away."""
        ...

    def task_store(self, agent_id: str, pool: asyncpg.Pool | None = None) -> "TaskStore":
        """Return where the tasks of an agent are kept."""
        ...

    def task_runner(
        self,
        agent_id: str,
        tools: Tools,
        tasks: "TaskStore",
        emitter: "Emitter",
        security_level: SecurityLevel,
        settings: "WorkerSettings",
    ) -> Callable[[], Awaitable[None]]:
        """Return what runs the tasks of an agent until it is cancelled. Raises AgentError for tools of another mind."""
        ...

    def snapshots(self, memory: BaseMemoryStore) -> SnapshotSource:
        """Return what builds context objects from a memory."""
        ...

    def relevance(
        self,
        message: ContextMessage,
        context: AgentContext,
        settings: "RelevanceSettings",
        *,
        language: str,
        actions: Collection[str],
    ) -> float:
        """Return how much a message concerns an agent that can do these `actions`, 0..1."""
        ...

    async def add_messages(self, connection: Connection, owner: str, messages: NewMessages) -> None:
        """Add messages to their conversation in the transaction of the connection.

        Raises ConversationInvalid, ValueInvalid, MemoryUnavailable.
        """
        ...


@cache
def find_mind() -> Mind | None:
    """Return `apc_minds`, found by its name: the SDK imports nothing of it. None where it is not installed."""
    try:
        return cast(Mind, import_module(MIND))
    except ModuleNotFoundError as error:
        if error.name != MIND:
            raise
        return None


def require_mind(what: str) -> Mind:
    """Return the mind for what needs one. Raises AgentError where none is installed."""
    mind = find_mind()
    if mind is None:
        raise without_mind(what)
    return mind


def without_mind(what: str) -> AgentError:
    """Return the error for what needs a mind."""
    return AgentError(f"{what}: this needs the package {MIND}, which is not installed here")


# The context object of one run of a handler, and the conversation that it belongs to.

MEMORY_AWAY_AFTER = timedelta(seconds=5)
"""When a packet is tried again whose conversation could not be read or written."""


class Snapshot:
    """The context object of a packet: made when it is first asked for, and the same from then on.

    Every method raises Retry when the memory store does not answer.
    """

    def __init__(self, agent: Actor, packet: Packet, memory: BaseMemoryStore, *, is_paused: bool) -> None:
        self._agent = agent
        self._packet = packet
        self._source = require_mind("ctx.snapshot").snapshots(memory)
        self._anomalies = ("session_paused",) if is_paused else ()
        self._context: AgentContext | None = None
        self._is_recorded = False

    def heard(self) -> ContextMessage:
        """Return the packet as a message of its conversation."""
        return self._source.heard(self._packet)

    async def preview(self) -> AgentContext:
        """Return the context object without taking the packet into the conversation.

        Raises:
            Reject: `metadata.agent_context` of the packet does not fit the protocol.
        """
        if self._context is None:
            focus = self._agent.capabilities or ()
            with _retried():
                self._context = await self._source.assemble(
                    self._packet, self._agent.agent_id, focus=focus, anomalies=self._anomalies
                )
        return self._context

    async def take(self) -> AgentContext:
        """Return the context object; the packet now belongs to the conversation. Raises as `preview`."""
        context = await self.preview()
        if not self._is_recorded:
            await self._record(self._packet)
            self._is_recorded = True
        return context

    async def follow(self, emitted: Packet) -> None:
        """Take what the handler has emitted into the conversation."""
        await self._record(emitted)

    def is_followed_in(self, session_id: str | None) -> bool:
        """Return whether an emission into a session, None for that of the packet, belongs to the conversation."""
        return self._is_recorded and session_id in (None, self._packet.trace.session_id)

    async def pass_over(self) -> None:
        """Leave the packet out of what this agent is told later."""
        with _retried():
            await self._source.pass_over(self._packet, self._agent.agent_id)

    async def _record(self, packet: Packet) -> None:
        with _retried():
            await self._source.record(packet, self._agent.agent_id)


async def remember(packets: Iterable[Packet], agent_id: str, memory: BaseMemoryStore) -> None:
    """Take emissions into their session's conversation. Raises Retry when the memory store does not answer."""
    source = require_mind("ctx.memory").snapshots(memory)
    for packet in packets:
        with _retried():
            await source.record(packet, agent_id)


@contextmanager
def _retried() -> Iterator[None]:
    """Raise Retry where the memory is away, or everybody writes to it: another attempt of the packet helps."""
    try:
        yield
    except (MemoryUnavailable, StaleRevision) as error:
        raise Retry(MEMORY_AWAY_AFTER, str(error)) from error

"""The memory of agents: a port. Source: docs/reference/conformance/memory.md section 3; docs/specification/agents.md
section 3.

The eight methods of the document come first, as coroutines with its argument names; what comes after them is ours.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from apc_agents.memory.conversation import (
    ConversationContext,
    ConversationInvalid,
    MemoryArgumentInvalid,
    NewMessages,
    checked_id,
)

MAX_PAGE: Final = 1_000
DEFAULT_OWNER: Final = "apc"
"""The owner of a deployment that names none."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What was deleted, in rows."""

    conversations: int
    agent_states: int


class BaseMemoryStore(ABC):
    """Conversations and agent states of one owner. What another owner has stored is not there, and cannot be touched.

    Values are JSON (`apc_agents.memory.conversation`) and come back as copies; what a call wrote is durable when it
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


def check_conversation(session_id: str, user_id: str, conversation: ConversationContext) -> None:
    """Check what is to be saved. Raises ArgumentInvalid, ConversationInvalid."""
    checked_id("session_id", session_id)
    checked_id("user_id", user_id)
    if not isinstance(conversation, ConversationContext):
        raise ConversationInvalid("$", f"it is {type(conversation).__name__}: give a ConversationContext")
    if conversation.session_id != session_id:
        raise ConversationInvalid("session_id", f"it is {conversation.session_id!r}, and this is {session_id!r}")


def state_place(agent_id: str, owner_id: str, key: str) -> tuple[str, str, str]:
    """Return the primary key of an agent state. Raises ArgumentInvalid."""
    return checked_id("agent_id", agent_id), checked_id("owner_id", owner_id), checked_id("key", key)


def check_page(limit: int, offset: int) -> None:
    """Check the page that is asked for. Raises ArgumentInvalid."""
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise MemoryArgumentInvalid("limit", f"{limit!r} is no number in 1..{MAX_PAGE}: ask for the rest with offset")
    if type(offset) is not int or not 0 <= offset < 2**31:
        raise MemoryArgumentInvalid("offset", f"{offset!r} is no number in 0..2^31 - 1")


def check_timestamp(moment: datetime) -> None:
    """Check that a time has an offset from UTC. Raises ArgumentInvalid."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise MemoryArgumentInvalid("moment", f"{moment!r} is no time with an offset from UTC: give one")

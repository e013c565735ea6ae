"""The memory of agents: conversations and agent states, by owner.

Source: Agent Memory Protocol 1.0; docs/reference/memory.md.
"""

from apc_agents.memory.conversation import (
    CONVERSATION_VERSION,
    MAX_ID_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_VALUE_BYTES,
    ConversationContext,
    ConversationInvalid,
    ConversationMessage,
    MemoryArgumentInvalid,
    MemoryStoreError,
    MemoryUnavailable,
    NewMessages,
    OwnerForeign,
    StaleRevision,
    UnknownSession,
    ValueInvalid,
)
from apc_agents.memory.in_memory import InMemoryMemoryStore
from apc_agents.memory.postgres import PostgresMemoryStore
from apc_agents.memory.store import DEFAULT_OWNER, MAX_PAGE, BaseMemoryStore, Removed

__all__ = [
    "CONVERSATION_VERSION",
    "DEFAULT_OWNER",
    "MAX_ID_BYTES",
    "MAX_MESSAGE_BYTES",
    "MAX_PAGE",
    "MAX_VALUE_BYTES",
    "BaseMemoryStore",
    "ConversationContext",
    "ConversationInvalid",
    "ConversationMessage",
    "InMemoryMemoryStore",
    "MemoryArgumentInvalid",
    "MemoryStoreError",
    "MemoryUnavailable",
    "NewMessages",
    "OwnerForeign",
    "PostgresMemoryStore",
    "Removed",
    "StaleRevision",
    "UnknownSession",
    "ValueInvalid",
]

"""The memory of agents: conversations and agent states, by owner.

Source: Agent Memory Protocol 1.0; docs/reference/memory.md.
"""

from apc_agents.errors import (
    ConversationInvalid,
    MemoryArgumentInvalid,
    MemoryStoreError,
    MemoryUnavailable,
    OwnerForeign,
    StaleRevision,
    UnknownSession,
    ValueInvalid,
)
from apc_agents.ports import (
    CONVERSATION_VERSION,
    DEFAULT_OWNER,
    MAX_ID_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_VALUE_BYTES,
    BaseMemoryStore,
    ConversationContext,
    ConversationMessage,
    NewMessages,
    Removed,
)
from apc_minds.memory.conversation import MAX_PAGE
from apc_minds.memory.in_memory import InMemoryMemoryStore
from apc_minds.memory.postgres import PostgresMemoryStore

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

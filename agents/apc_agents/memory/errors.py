"""Errors of the memory.

AgentError
  MemoryStoreError
    ValueInvalid         (path): a value that JSON does not know, or that is too large
    ConversationInvalid  (path): a conversation that cannot be stored, or a stored one that cannot be read
    ArgumentInvalid      (place): a page, a moment or an id outside its range
    OwnerForeign         what is written belongs to another owner, or to another user
    StaleRevision        (revision, current): somebody else has written it since it was read
    UnknownSession       (session_id): nobody began this session
    MemoryUnavailable    the database does not answer

Whatever raises one of them leaves the memory as it was.
"""

from typing import Any, Final

import orjson

from apc_agents.errors import AgentError
from apc_agents.json_values import checked_text, json_value


class MemoryStoreError(AgentError):
    """A memory store cannot do what it is asked to."""


class ValueInvalid(MemoryStoreError):
    """A value that JSON does not know, or that is too large; `path` leads to it (`$` = the whole)."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"value refused at {path}: {message}")
        self.path = path


class ConversationInvalid(MemoryStoreError):
    """A conversation that cannot be stored, or a stored one that cannot be read; `path` leads to the field."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"conversation refused at {path}: {message}")
        self.path = path


class MemoryArgumentInvalid(MemoryStoreError):
    """An argument outside its range; `place` names it."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place = place


class OwnerForeign(MemoryStoreError):
    """What is written belongs to another owner, or to another user."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} belongs to somebody else: use another id, or the store of its owner")


class StaleRevision(MemoryStoreError):
    """Somebody else has written it since it was read; `current` is 0 when there is none."""

    def __init__(self, what: str, revision: int, current: int) -> None:
        super().__init__(f"{what} has revision {current}, not {revision}: read it again")
        self.revision = revision
        self.current = current


class UnknownSession(MemoryStoreError):
    """Nobody began this session."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"unknown session {session_id!r}: begin it first, or check its id")
        self.session_id = session_id


class MemoryUnavailable(MemoryStoreError):
    """The database does not answer."""


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

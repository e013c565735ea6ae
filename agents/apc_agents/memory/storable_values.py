"""What may be stored: JSON, and nothing that JSONB would change or refuse.

Pickle is not supported: anyone who may write a pickled value may run code wherever it is read.
"""

from typing import Any, Final

import orjson

from apc_agents.json_values import checked_text, json_value
from apc_agents.memory.errors import MemoryArgumentInvalid, ValueInvalid

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

"""Effects of handlers on the world outside, made once: claimed before, recorded after, reported when it is unknown."""

from apc_agents.effects.database import PostgresEffectStore
from apc_agents.effects.errors import EffectError, EffectNotMade, EffectResultLost, EffectSettled, EffectUnknown
from apc_agents.effects.in_memory import MemoryEffectStore
from apc_agents.effects.maker import EffectMaker, is_making_effect
from apc_agents.effects.model import EffectId, EffectRecord, EffectState
from apc_agents.effects.store import EffectStore

__all__ = [
    "EffectError",
    "EffectId",
    "EffectMaker",
    "EffectNotMade",
    "EffectRecord",
    "EffectResultLost",
    "EffectSettled",
    "EffectState",
    "EffectStore",
    "EffectUnknown",
    "MemoryEffectStore",
    "PostgresEffectStore",
    "is_making_effect",
]

"""Effects of handlers on the world outside, made once: claimed before, recorded after, reported when it is unknown."""

from apc_agents.effects.in_memory import MemoryEffectStore
from apc_agents.effects.maker import EffectMaker, is_making_effect
from apc_agents.effects.postgres import PostgresEffectStore
from apc_agents.effects.store import (
    EffectError,
    EffectId,
    EffectNotMade,
    EffectRecord,
    EffectResultLost,
    EffectSettled,
    EffectState,
    EffectStore,
    EffectUnknown,
)

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

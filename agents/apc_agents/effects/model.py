"""What is known of an effect."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from pydantic import JsonValue


class EffectState(StrEnum):
    """Where an effect stands."""

    RUNNING = "RUNNING"
    """A worker that gives signs of life is making it."""
    UNKNOWN = "UNKNOWN"
    """It was begun, and how that ended was not recorded."""
    RESULT_LOST = "RESULT_LOST"
    """It was made; what it gave could not be kept."""
    MADE = "MADE"


UNSETTLED = frozenset({EffectState.UNKNOWN, EffectState.RESULT_LOST})
"""An operator, or the handler, has to look."""


@dataclass(frozen=True, slots=True)
class EffectId:
    """An effect of one agent for one packet; `key` is the handler's own name for it."""

    packet_id: UUID
    agent_id: str
    key: str

    def __str__(self) -> str:
        return f"effect {self.key!r} of packet {self.packet_id} by {self.agent_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectClaim:
    """A wish to make an effect. `expires_at`: from then on nobody will ask for it again, as its packet has expired."""

    effect_id: EffectId
    claim_id: UUID
    session_id: str
    worker: str
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRecord:
    """An effect as it is kept. `problem`: why it is UNKNOWN (None = its worker died), or why the result was lost."""

    effect_id: EffectId
    claim_id: UUID
    session_id: str
    worker: str
    state: EffectState
    claimed_at: datetime
    made_at: datetime | None
    result: JsonValue
    problem: str | None
    settled_by: str | None

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON, for `apc effect`."""
        return {
            "packet_id": str(self.effect_id.packet_id),
            "agent_id": self.effect_id.agent_id,
            "key": self.effect_id.key,
            "state": self.state.value,
            "session_id": self.session_id,
            "worker": self.worker,
            "claimed_at": self.claimed_at,
            "made_at": self.made_at,
            "result": self.result,
            "problem": self.problem,
            "settled_by": self.settled_by,
        }

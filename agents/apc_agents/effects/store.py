"""Where effects are kept: the port."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from pydantic import JsonValue

from apc_agents.errors import AgentError

# What is known of an effect.


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


# Errors of effects.
#
# AgentError
#   EffectError
#     EffectUnknown      (effect_id, since): claimed, and never recorded: it may have been made
#     EffectResultLost   (effect_id): it was made, and what it gave could not be kept
#     EffectSettled      (effect_id): there is nothing to settle: it is made, being made, or was never claimed
#
# What `fn` itself raises goes through `ctx.once`. It raises EffectNotMade to say that nothing has happened.


class EffectError(AgentError):
    """An effect cannot be made, or its result not be given; `effect_id` names packet, agent and key."""

    def __init__(self, effect_id: EffectId, message: str) -> None:
        super().__init__(f"{effect_id} {message}")
        self.effect_id = effect_id


class EffectUnknown(EffectError):
    """Somebody began to make it and did not record how that ended: it may have been made, and is not made again.

    `since` is when it was claimed, `worker` by whom, `problem` what became of it; None when its worker died.
    """

    def __init__(self, effect_id: EffectId, since: datetime, worker: str, problem: str | None) -> None:
        why = problem or "gave no sign of life before it was recorded"
        super().__init__(
            effect_id,
            f"is unknown: {worker} began it at {since.isoformat(timespec='seconds')} and {why}. Find out whether it "
            "happened, then ctx.settle(key, result) or ctx.release(key), or `apc effect settle`",
        )
        self.since = since
        self.worker = worker
        self.problem = problem


class EffectResultLost(EffectError):
    """It was made, and will not be made again; what it gave could not be kept: `problem` says where and why."""

    def __init__(self, effect_id: EffectId, problem: str) -> None:
        super().__init__(
            effect_id,
            f"was made, but its result cannot be kept: {problem}. Give it one with ctx.settle(key, result), "
            "or `apc effect settle`",
        )
        self.problem = problem


class EffectSettled(EffectError):
    """There is nothing to settle."""


class EffectNotMade(Exception):
    """Raised by what makes an effect: nothing has happened, it may be tried again."""


MAX_LISTED = 1_000


class EffectStore(Protocol):
    """Effects by (packet_id, agent_id, key). Durable when a call returns; all times are the store's own.

    A claim is held for as long as its lease is renewed. What its holder says late still counts while nobody else has
    settled it: the holder knows.
    """

    async def claim(self, claim: EffectClaim, lease: timedelta) -> EffectRecord:
        """Claim an effect that nobody has claimed; returns what is kept, which may be another's claim."""
        ...

    async def renew(self, effect_id: EffectId, claim_id: UUID, lease: timedelta) -> None:
        """Renew the lease of a claim."""
        ...

    async def record(
        self, effect_id: EffectId, claim_id: UUID, result: JsonValue, *, problem: str | None = None
    ) -> EffectRecord | None:
        """Record that the effect was made; return what is kept: its result, why it cannot be kept, or None."""
        ...

    async def interrupt(self, effect_id: EffectId, claim_id: UUID, problem: str) -> None:
        """Record that the effect was begun and that its holder does not know how it ended."""
        ...

    async def withdraw(self, effect_id: EffectId, claim_id: UUID) -> None:
        """Delete a claim: its holder says that the effect has not happened."""
        ...

    async def settle(self, effect_id: EffectId, result: JsonValue, by: str) -> EffectRecord:
        """Settle an unknown effect: it has happened, with this result. Raises EffectSettled."""
        ...

    async def release(self, effect_id: EffectId) -> None:
        """Settle an unknown effect: it has not happened, and who asks next makes it. Raises EffectSettled."""
        ...

    async def get(self, effect_id: EffectId) -> EffectRecord | None:
        """Return the effect; None when nobody has claimed it."""
        ...

    async def list(
        self,
        *,
        agent_id: str | None = None,
        packet_id: UUID | None = None,
        states: Collection[EffectState] | None = None,
        limit: int = 100,
    ) -> Sequence[EffectRecord]:
        """Return the newest effects, newest first; at most MAX_LISTED."""
        ...

    async def purge(self, agent_id: str, retention: timedelta) -> int:
        """Forget what was made for packets that expired so long ago; says how many. What is unknown stays."""
        ...


def check_unsettled(effect_id: EffectId, kept: EffectRecord | None, *, may_be_made: bool = True) -> None:
    """Raise EffectSettled unless there is something to settle; what was made cannot be released."""
    if kept is None:
        raise EffectSettled(effect_id, "is unknown to the store: nobody has claimed it, or it was released")
    if kept.state not in UNSETTLED:
        raise EffectSettled(effect_id, f"is {kept.state}: only an effect that is UNKNOWN, or RESULT_LOST, is settled")
    if kept.state is EffectState.RESULT_LOST and not may_be_made:
        raise EffectSettled(effect_id, f"was made at {kept.made_at}: it cannot be released, give it a result")

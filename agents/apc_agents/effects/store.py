"""Where effects are kept: the port."""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from pydantic import JsonValue

from apc_agents.effects.errors import EffectSettled
from apc_agents.effects.model import UNSETTLED, EffectClaim, EffectId, EffectRecord, EffectState

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

"""Effects that are forgotten with the process: for tests and for workers without a database."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from pydantic import JsonValue

from apc_agents.effects.store import MAX_LISTED, EffectClaim, EffectId, EffectRecord, EffectState, check_unsettled


def _now() -> datetime:
    return datetime.now(UTC)


class MemoryEffectStore:
    """An EffectStore in memory. `now` is its clock."""

    def __init__(self, now: Callable[[], datetime] = _now) -> None:
        self._now = now
        self._kept: dict[EffectId, EffectRecord] = {}
        self._leases: dict[EffectId, datetime] = {}
        self._expiries: dict[EffectId, datetime] = {}

    async def claim(self, claim: EffectClaim, lease: timedelta) -> EffectRecord:
        """Claim an effect."""
        known = self._seen(claim.effect_id)
        if known is not None:
            return known
        self._leases[claim.effect_id] = self._now() + lease
        self._expiries[claim.effect_id] = claim.expires_at
        kept = self._kept[claim.effect_id] = EffectRecord(
            effect_id=claim.effect_id,
            claim_id=claim.claim_id,
            session_id=claim.session_id,
            worker=claim.worker,
            state=EffectState.RUNNING,
            claimed_at=self._now(),
            made_at=None,
            result=None,
            problem=None,
            settled_by=None,
        )
        return kept

    async def renew(self, effect_id: EffectId, claim_id: UUID, lease: timedelta) -> None:
        """Renew the lease of a claim."""
        if self._is_open(effect_id, claim_id):
            self._leases[effect_id] = self._now() + lease

    async def record(
        self, effect_id: EffectId, claim_id: UUID, result: JsonValue, *, problem: str | None = None
    ) -> EffectRecord | None:
        """Record that the effect was made."""
        if self._is_open(effect_id, claim_id):
            self._made(effect_id, result, problem, None)
        return self._seen(effect_id)

    async def interrupt(self, effect_id: EffectId, claim_id: UUID, problem: str) -> None:
        """Record that the effect was begun and that no more is known."""
        if self._is_open(effect_id, claim_id):
            self._leases[effect_id] = self._now()
            self._kept[effect_id] = replace(self._kept[effect_id], problem=problem)

    async def withdraw(self, effect_id: EffectId, claim_id: UUID) -> None:
        """Delete a claim: its effect has not happened."""
        if self._is_open(effect_id, claim_id):
            self._forget(effect_id)

    async def settle(self, effect_id: EffectId, result: JsonValue, by: str) -> EffectRecord:
        """Settle an unknown effect: it has happened."""
        check_unsettled(effect_id, self._seen(effect_id))
        return self._made(effect_id, result, None, by)

    async def release(self, effect_id: EffectId) -> None:
        """Settle an unknown effect: it has not happened."""
        check_unsettled(effect_id, self._seen(effect_id), may_be_made=False)
        self._forget(effect_id)

    async def get(self, effect_id: EffectId) -> EffectRecord | None:
        """Return the effect."""
        return self._seen(effect_id)

    async def list(
        self,
        *,
        agent_id: str | None = None,
        packet_id: UUID | None = None,
        states: Collection[EffectState] | None = None,
        limit: int = 100,
    ) -> Sequence[EffectRecord]:
        """Return the newest effects."""
        seen = [self._now_of(kept) for kept in reversed(self._kept.values())]
        found = [
            one
            for one in seen
            if agent_id in (None, one.effect_id.agent_id)
            and packet_id in (None, one.effect_id.packet_id)
            and (states is None or one.state in states)
        ]
        return found[: min(limit, MAX_LISTED)]

    async def purge(self, agent_id: str, retention: timedelta) -> int:
        """Forget what is old."""
        old = [
            effect_id
            for effect_id, kept in self._kept.items()
            if effect_id.agent_id == agent_id
            and kept.made_at is not None
            and self._expiries[effect_id] < self._now() - retention
        ]
        for effect_id in old:
            self._forget(effect_id)
        return len(old)

    def _seen(self, effect_id: EffectId) -> EffectRecord | None:
        kept = self._kept.get(effect_id)
        return None if kept is None else self._now_of(kept)

    def _now_of(self, kept: EffectRecord) -> EffectRecord:
        is_late = kept.state is EffectState.RUNNING and self._leases[kept.effect_id] <= self._now()
        return replace(kept, state=EffectState.UNKNOWN) if is_late else kept

    def _is_open(self, effect_id: EffectId, claim_id: UUID) -> bool:
        kept = self._kept.get(effect_id)
        return kept is not None and kept.claim_id == claim_id and kept.made_at is None

    def _made(self, effect_id: EffectId, result: JsonValue, problem: str | None, by: str | None) -> EffectRecord:
        kept = self._kept[effect_id]
        made = self._kept[effect_id] = replace(
            kept,
            state=EffectState.MADE if problem is None else EffectState.RESULT_LOST,
            made_at=kept.made_at or self._now(),
            result=result,
            problem=problem,
            settled_by=by,
        )
        return made

    def _forget(self, effect_id: EffectId) -> None:
        del self._kept[effect_id], self._leases[effect_id], self._expiries[effect_id]

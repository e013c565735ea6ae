"""The SQL of PostgresEffectStore. One statement is one transaction: the primary key decides who makes an effect."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

import asyncpg
import orjson
from pydantic import JsonValue

from apc_agents.effects.store import MAX_LISTED, EffectClaim, EffectId, EffectRecord, EffectState, check_unsettled
from apc_agents.patience import patiently

_STATE = """
CASE WHEN made_at IS NOT NULL THEN CASE WHEN problem IS NULL THEN 'MADE' ELSE 'RESULT_LOST' END
     WHEN lease_until > clock_timestamp() THEN 'RUNNING' ELSE 'UNKNOWN' END
"""
_COLUMNS = f"""
packet_id, agent_id, key, claim_id, session_id, worker, {_STATE} AS state, claimed_at, made_at, result::text AS result,
problem, settled_by
"""
_PLACE = "packet_id = $1 AND agent_id = $2 AND key = $3"
_HELD = f"{_PLACE} AND claim_id = $4 AND made_at IS NULL"

CLAIM = f"""
INSERT INTO apc_app.agent_effects (packet_id, agent_id, key, claim_id, session_id, worker, expires_at, lease_until)
VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp() + $8::interval)
ON CONFLICT (packet_id, agent_id, key) DO NOTHING RETURNING {_COLUMNS}
"""

GET = f"SELECT {_COLUMNS} FROM apc_app.agent_effects WHERE {_PLACE}"

RENEW = f"UPDATE apc_app.agent_effects SET lease_until = clock_timestamp() + $5::interval WHERE {_HELD}"

RECORD = f"""
UPDATE apc_app.agent_effects SET made_at = clock_timestamp(), result = $5::text::jsonb, problem = $6 WHERE {_HELD}
"""

INTERRUPT = f"UPDATE apc_app.agent_effects SET lease_until = clock_timestamp(), problem = $5 WHERE {_HELD}"

WITHDRAW = f"DELETE FROM apc_app.agent_effects WHERE {_HELD}"

SETTLE = f"""
UPDATE apc_app.agent_effects
SET made_at = coalesce(made_at, clock_timestamp()), result = $4::text::jsonb, problem = NULL, settled_by = $5
WHERE {_PLACE} AND {_STATE} IN ('UNKNOWN', 'RESULT_LOST') RETURNING true
"""

RELEASE = f"DELETE FROM apc_app.agent_effects WHERE {_PLACE} AND {_STATE} = 'UNKNOWN' RETURNING true"

LIST = f"""
SELECT {_COLUMNS} FROM apc_app.agent_effects
WHERE ($1::text IS NULL OR agent_id = $1) AND ($2::uuid IS NULL OR packet_id = $2)
  AND ($3::text[] IS NULL OR {_STATE} = ANY($3))
ORDER BY claimed_at DESC, packet_id, key LIMIT $4
"""

PURGE = """
DELETE FROM apc_app.agent_effects
WHERE agent_id = $1 AND made_at IS NOT NULL AND expires_at < clock_timestamp() - $2::interval RETURNING true
"""


# Effects in table apc_app.agent_effects.

ResultT = TypeVar("ResultT")


class PostgresEffectStore:
    """An EffectStore in Postgres. The pool stays the caller's.

    Args:
        pool: lent for single statements; none is held while an effect is made.
        is_patient: wait for a database that is away, because without it no effect may be made, and none that was made
            be forgotten; else raise StateUnavailable.
    """

    def __init__(self, pool: asyncpg.Pool, *, is_patient: bool = True) -> None:
        self._pool = pool
        self._is_patient = is_patient

    async def claim(self, claim: EffectClaim, lease: timedelta) -> EffectRecord:
        """Claim an effect."""
        made = (claim.claim_id, claim.session_id, claim.worker, claim.expires_at, lease)
        while True:
            # A claim whose commit was not seen is found again, and known by its claim_id.
            if (row := await self._row(CLAIM, claim.effect_id, *made)) is not None:
                return _record(row)
            if (kept := await self.get(claim.effect_id)) is not None:
                return kept

    async def renew(self, effect_id: EffectId, claim_id: UUID, lease: timedelta) -> None:
        """Renew the lease of a claim."""
        await self._row(RENEW, effect_id, claim_id, lease)

    async def record(
        self, effect_id: EffectId, claim_id: UUID, result: JsonValue, *, problem: str | None = None
    ) -> EffectRecord | None:
        """Record that the effect was made."""
        await self._row(RECORD, effect_id, claim_id, orjson.dumps(result).decode(), problem)
        return await self.get(effect_id)

    async def interrupt(self, effect_id: EffectId, claim_id: UUID, problem: str) -> None:
        """Record that the effect was begun and that no more is known."""
        await self._row(INTERRUPT, effect_id, claim_id, problem)

    async def withdraw(self, effect_id: EffectId, claim_id: UUID) -> None:
        """Delete a claim: its effect has not happened."""
        await self._row(WITHDRAW, effect_id, claim_id)

    async def settle(self, effect_id: EffectId, result: JsonValue, by: str) -> EffectRecord:
        """Settle an unknown effect: it has happened."""
        check_unsettled(effect_id, await self.get(effect_id))
        row = await self._row(SETTLE, effect_id, orjson.dumps(result).decode(), by)
        kept = await self.get(effect_id)
        # Without a row, it may be settled by an attempt of ours whose commit was not seen.
        if kept is not None and row is None and (kept.settled_by, kept.result) == (by, result):
            return kept
        if row is None or kept is None:
            check_unsettled(effect_id, kept)  # somebody else has settled it meanwhile
            return await self.settle(effect_id, result, by)
        return kept

    async def release(self, effect_id: EffectId) -> None:
        """Settle an unknown effect: it has not happened."""
        check_unsettled(effect_id, await self.get(effect_id), may_be_made=False)
        if await self._row(RELEASE, effect_id) is None and (kept := await self.get(effect_id)) is not None:
            check_unsettled(effect_id, kept, may_be_made=False)  # no row: an attempt of ours may have released it

    async def get(self, effect_id: EffectId) -> EffectRecord | None:
        """Return the effect."""
        row = await self._row(GET, effect_id)
        return None if row is None else _record(row)

    async def list(
        self,
        *,
        agent_id: str | None = None,
        packet_id: UUID | None = None,
        states: Collection[EffectState] | None = None,
        limit: int = 100,
    ) -> Sequence[EffectRecord]:
        """Return the newest effects."""
        names = None if states is None else [state.value for state in states]
        arguments = (agent_id, packet_id, names, min(limit, MAX_LISTED))
        rows = await self._patiently(lambda: self._pool.fetch(LIST, *arguments))
        return [_record(row) for row in rows]

    async def purge(self, agent_id: str, retention: timedelta) -> int:
        """Forget what is old."""
        rows = await self._patiently(lambda: self._pool.fetch(PURGE, agent_id, retention))
        return len(rows)

    async def _row(self, statement: str, effect_id: EffectId, *arguments: object) -> asyncpg.Record | None:
        place = (effect_id.packet_id, effect_id.agent_id, effect_id.key)
        return await self._patiently(lambda: self._pool.fetchrow(statement, *place, *arguments))

    async def _patiently(self, action: Callable[[], Awaitable[ResultT]]) -> ResultT:
        return await patiently(action, "effect store", is_patient=self._is_patient)


def _record(row: asyncpg.Record) -> EffectRecord:
    return EffectRecord(
        effect_id=EffectId(row["packet_id"], row["agent_id"], row["key"]),
        claim_id=row["claim_id"],
        session_id=row["session_id"],
        worker=row["worker"],
        state=EffectState(row["state"]),
        claimed_at=row["claimed_at"],
        made_at=row["made_at"],
        result=None if row["result"] is None else orjson.loads(row["result"]),
        problem=row["problem"],
        settled_by=row["settled_by"],
    )

"""Checks of handlers' side effects whose outcome is unknown."""

from collections.abc import Sequence
from datetime import UTC, datetime

import asyncpg

from apc_agents.effects import EffectRecord, PostgresEffectStore
from apc_agents.effects.store import MAX_LISTED, UNSETTLED
from apc_console.doctor.finding import Finding, ok, warning
from apc_contracts.text import numbered

FIX = "`apc effect list --state unknown --state result_lost` shows them; say what happened with `apc effect settle`"


async def look_at_effects(pool: asyncpg.Pool) -> list[Finding]:
    """Check effects that wait to be settled: how many, of which agents, since when."""
    try:
        records = await PostgresEffectStore(pool, is_patient=False).list(states=UNSETTLED, limit=MAX_LISTED)
    except asyncpg.InsufficientPrivilegeError:
        return [ok("effects", "not looked at: this database user may not read what agents keep")]
    return [_finding(records)] if records else [ok("effects", "none is unknown")]


def _finding(records: Sequence[EffectRecord]) -> Finding:
    agents = ", ".join(sorted({record.effect_id.agent_id for record in records}))
    hours = (datetime.now(UTC) - min(record.claimed_at for record in records)).total_seconds() / 3600
    count = f"{len(records)} or more wait" if len(records) == MAX_LISTED else numbered(len(records), "waits", "wait")
    return warning("effects", f"{count} to be settled (of {agents}), the oldest for {hours:.1f} h", FIX)

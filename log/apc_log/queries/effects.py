"""What the log holds of effects that handlers made outside the bus: entries of their workers and of operators."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from apc_contracts.session.session import ReportedEffects
from apc_contracts.wire.receipts import EffectEntry

# The packets are looked up one by one, by the unique index of the hops; a session by its own.
_COLUMNS = """
hop.shard, hop.seq, hop.session_id, hop.packet_id, hop.recipient AS agent_id, hop.actor,
       hop.occurred_at[1] AS at, hop.metadata ->> 'effect' AS effect
"""
OF_PACKETS = f"""
SELECT {_COLUMNS} FROM unnest($1::text[], $2::uuid[]) AS wanted(session_id, packet_id)
JOIN apc_log.packet_events AS hop USING (session_id, packet_id)
WHERE hop.attempt < 0 ORDER BY hop.shard, hop.seq
"""
OF_SESSION = f"""
SELECT {_COLUMNS} FROM apc_log.packet_events AS hop WHERE hop.session_id = $1 AND hop.attempt < 0
ORDER BY hop.shard, hop.seq
"""
OF_PACKET = f"""
SELECT {_COLUMNS} FROM apc_log.packet_ids AS known
JOIN apc_log.packet_events AS hop USING (session_id, packet_id)
WHERE known.packet_id = $1 AND hop.attempt < 0 ORDER BY hop.shard, hop.seq
"""


@dataclass(frozen=True, slots=True)
class EffectRow:
    """One entry about an effect. `actor`: the agent itself, or the operator who settled it."""

    shard: int
    seq: int
    session_id: str
    packet_id: UUID
    agent_id: str
    actor: str
    at: datetime
    key: str
    claim: UUID
    entry: str
    attempt: int
    digest: str | None
    reference: str | None
    note: str | None


@dataclass(slots=True)
class LoggedEffect:
    """An effect of one agent for one packet, with its entries in the order of the log."""

    packet_id: UUID
    agent_id: str
    key: str
    entries: list[EffectRow] = field(default_factory=list)

    @property
    def state(self) -> str:
        """Where it stands: absent, claimed, made, unknown or settled."""
        effects = ReportedEffects()
        for one in self.entries:
            effects.note(one.packet_id, one.agent_id, one.key, one.claim, EffectEntry(one.entry))
        return effects.state_of(self.key)

    @property
    def words(self) -> str:
        """The effect in one line: who, what, where it stands, how it came there."""
        last = self.entries[-1]
        by = "" if last.actor == self.agent_id else f" by {last.actor}"
        found = [*(one.reference for one in self.entries if one.reference), *([last.note] if last.note else [])]
        said = f" ({'; '.join(found)})" if found else ""
        return f"effect {self.key} of {self.agent_id}: {', '.join(one.entry for one in self.entries)}{by}{said}"


async def session_effects(pool: asyncpg.Pool, session_id: str) -> list[LoggedEffect]:
    """Return the effects of a session, in the order in which they were first reported."""
    return _effects(map(_row, await pool.fetch(OF_SESSION, session_id)))


async def packet_effects(pool: asyncpg.Pool, packet_id: UUID) -> list[LoggedEffect]:
    """Return the effects that were made for a packet; of all sessions that know the id."""
    return _effects(map(_row, await pool.fetch(OF_PACKET, packet_id)))


async def effects_of(
    pool: asyncpg.Pool, packets: Collection[tuple[str, UUID]]
) -> dict[tuple[str, UUID], list[LoggedEffect]]:
    """Return the effects that were made for these packets, by session and packet."""
    if not packets:
        return {}
    sessions, ids = zip(*packets, strict=True)
    rows: dict[tuple[str, UUID], list[EffectRow]] = {}
    for row in map(_row, await pool.fetch(OF_PACKETS, list(sessions), list(ids))):
        rows.setdefault((row.session_id, row.packet_id), []).append(row)
    return {packet: _effects(found) for packet, found in rows.items()}


def _effects(rows: Iterable[EffectRow]) -> list[LoggedEffect]:
    found: dict[tuple[UUID, str, str], LoggedEffect] = {}
    for row in rows:
        place = (row.packet_id, row.agent_id, row.key)
        found.setdefault(place, LoggedEffect(*place)).entries.append(row)
    return list(found.values())


def _row(record: asyncpg.Record) -> EffectRow:
    said: dict[str, Any] = orjson.loads(record["effect"])
    names: Sequence[str] = ("shard", "seq", "session_id", "packet_id", "agent_id", "actor", "at")
    return EffectRow(
        **{name: record[name] for name in names},
        key=said["key"],
        claim=UUID(said["claim"]),
        entry=said["entry"],
        attempt=said["attempt"],
        digest=said.get("digest"),
        reference=said.get("reference"),
        note=said.get("note"),
    )

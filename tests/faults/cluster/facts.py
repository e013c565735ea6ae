"""Read what the account of the cluster run compares: the driver's journal, the log, the handlers' notes."""

from pathlib import Path

import asyncpg
import orjson
from tests.faults.cluster.accounting import Facts, Row, read_journal
from tests.faults.cluster.driver import JOURNAL
from tests.faults.cluster.notes import read_notes

PACKETS = """
SELECT session_id, packet_id, packet_type, sender_agent_id, verdict = 'accepted' AS is_accepted,
    extract(epoch FROM created_at)::float8, extract(epoch FROM judged_at)::float8,
    extract(epoch FROM recorded_at)::float8
FROM apc_log.agent_packets
"""
STATES = "SELECT session_id, state FROM apc_log.sessions"
CONFLICTS = "SELECT kind, count(*) FROM apc_log.packet_conflicts GROUP BY kind"


async def read_facts(pool: asyncpg.Pool, folder: Path) -> Facts:
    """Return everything that the run has left."""
    lines = (folder / JOURNAL).read_text().splitlines()
    return Facts(
        asked=read_journal(map(orjson.loads, lines)),
        rows=[Row(*row) for row in await pool.fetch(PACKETS)],
        states={row[0]: row[1] for row in await pool.fetch(STATES)},
        notes=list(read_notes(folder)),
        conflicts={row[0]: row[1] for row in await pool.fetch(CONFLICTS)},
    )

"""Checks of dead letters, in the broker and in the log, and of inputs that were set aside."""

from collections.abc import Mapping
from datetime import UTC, datetime

import asyncpg

from apc_bus.port import QueueDepth
from apc_bus.topology import DEAD_QUEUE
from apc_console.doctor.finding import Finding, ok, warning
from apc_contracts.text import numbered
from apc_log.queries.health import count_dead_by_reason, count_set_aside

FIX = (
    "`apc dead-letter list` shows them; then `apc dead-letter requeue` sends them again, or `discard` puts them to rest"
)
SET_ASIDE_DAYS = 7
SHOWN = 5
"""Reasons that are listed."""


def judge_dead_queue(depths: Mapping[str, QueueDepth]) -> list[Finding]:
    """Check whether dead letters wait in the broker for a gate to record them."""
    depth = depths.get(DEAD_QUEUE)
    if depth is None:
        return []  # reported by the topology check
    waiting = numbered(depth.messages, "waits", "wait")
    if depth.consumers == 0:
        said = f"{waiting} to be recorded, and no gate takes them" if depth.messages else "no gate takes them"
        return [warning("dead letters", said, "apc serve orchestrator")]
    if depth.messages:
        fix = "the gate takes them; its own log says why it does not (dead_letter_failed)"
        return [warning("dead letters", f"{waiting} in {DEAD_QUEUE}", fix)]
    return [ok("dead letters", "none waits to be recorded")]


async def look_at_inputs_set_aside(pool: asyncpg.Pool) -> list[Finding]:
    """Check whether inputs have ended gates lately, and were set aside."""
    count = await count_set_aside(pool, SET_ASIDE_DAYS)
    if not count:
        return []
    found = numbered(count, "input", "inputs")
    said = f"{found} ended the gate each time, within {SET_ASIDE_DAYS} days: packet_conflicts of kind unjudgeable"
    fix = "it is a defect of the gate, and nobody gets an answer to them: report it with its log lines (gate_failed)"
    return [warning("inputs set aside", said, fix)]


async def look_at_dead_letters(pool: asyncpg.Pool) -> list[Finding]:
    """Check deliveries that ended as dead letters and were neither requeued nor discarded: how many, and why."""
    rows = await count_dead_by_reason(pool)
    if not rows:
        return [ok("dead letters", "no delivery is one")]
    count = sum(row["deliveries"] for row in rows)
    reasons = [f"{row['deliveries']} {row['reason']}" for row in rows[:SHOWN]]
    if len(rows) > SHOWN:
        reasons.append("others")
    age = (datetime.now(UTC) - min(row["oldest"] for row in rows)).total_seconds()
    since = f"{age:.0f} s" if age < 3600 else f"{age / 3600:.0f} h"
    ended = numbered(count, "delivery", "deliveries")
    said = f"{ended} ended as dead letters ({', '.join(reasons)}), the oldest {since} ago"
    return [warning("dead letters", said, FIX)]

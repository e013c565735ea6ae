"""Checks of the registered agents: whether they receive what is sent to them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import asyncpg

from apc_bus.port import QueueDepth
from apc_console.commands.agent.agents_view import inbox_depths, listed
from apc_console.doctor.finding import Finding, ok, warning
from apc_contracts.text import numbered


async def look_at_agents(pool: asyncpg.Pool, depths: Mapping[str, QueueDepth]) -> list[Finding]:
    """Check each registered agent that handles something: is it alive, and are its queues consumed."""
    now = datetime.now(UTC)
    agents = [row for row in await listed(pool, now) if not row["is_revoked"]]
    findings = [finding for row in agents if (finding := _agent(row, depths, now)) is not None]
    if findings or not agents:
        return findings
    registered = f"{numbered(len(agents), 'is', 'are')} registered"
    return [ok("agents", f"{registered}; each that handles something is alive and consumes")]


def _agent(row: dict[str, Any], depths: Mapping[str, QueueDepth], now: datetime) -> Finding | None:
    inbox = inbox_depths(depths, row["agent_id"])
    waiting = sum(depth.messages for depth in inbox)
    is_consumed = bool(inbox) and all(depth.consumers for depth in inbox)
    if is_consumed and row["is_alive"]:
        return None
    if not row["handles"] and not waiting:
        return None  # an operator, who has no inbox
    seen = row["last_seen"]
    said = "never heard of" if seen is None else f"last heard of {(now - seen).total_seconds():.0f} s ago"
    if not is_consumed:
        said = f"nobody consumes its queues; {said}"
    waits = f"; {numbered(waiting, 'packet waits', 'packets wait')}" if waiting else ""
    fix = f"start its worker, or `apc agent revoke {row['agent_id']}`"
    return warning("agents", f"{row['agent_id']}: {said}{waits}", fix)

"""The registered agents: whether they are alive, when last seen, and what waits for them."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from apc_bus.errors import QueueMissing
from apc_bus.port import Bus, QueueDepth
from apc_bus.settings import BusSettings
from apc_bus.topology import agent_queue
from apc_console.connections.broker import open_bus
from apc_console.connections.database import open_log
from apc_log.queries.agents import count_open_deliveries, list_registered

ALIVE_WITHIN = timedelta(seconds=90)
"""Three missed heartbeats (docs/specification/agents.md section 1: one after 30 s of silence)."""


async def agent_rows() -> list[dict[str, Any]]:
    """Return one row per agent: `open` deliveries from the log, `waiting` messages from the broker, or None."""
    settings = BusSettings()
    async with open_log() as pool:
        rows = await listed(pool, datetime.now(UTC))
    for row in rows:
        row["waiting"] = None
    if settings.amqp_nodes:
        async with open_bus(settings) as bus:
            for row in rows:
                row["waiting"] = await _waiting(bus, row["agent_id"])
    return rows


async def listed(pool: asyncpg.Pool, now: datetime) -> list[dict[str, Any]]:
    """Return what the log knows about every agent that was ever registered."""
    rows = [dict(row) for row in await list_registered(pool)]
    opened = await count_open_deliveries(pool)
    for row in rows:
        row["is_alive"] = row["last_seen"] is not None and now - row["last_seen"] < ALIVE_WITHIN
        row["open"] = opened.get(row["agent_id"], 0)
    return rows


def inbox_depths(depths: Mapping[str, QueueDepth], agent_id: str) -> list[QueueDepth]:
    """Return the depths of an agent's queues, as far as they exist."""
    queues = (agent_queue(agent_id, urgent) for urgent in (True, False))
    return [depths[queue] for queue in queues if queue in depths]


async def _waiting(bus: Bus, agent_id: str) -> int | None:
    with suppress(QueueMissing):
        return sum([(await bus.depth(agent_queue(agent_id, urgent))).messages for urgent in (True, False)])
    return None

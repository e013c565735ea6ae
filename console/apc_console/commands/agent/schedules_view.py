"""`apc agent schedules`: the cron lines of agents, and when each fires next."""

from typing import Any

from apc_agents.scheduling import list_schedules
from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable


async def schedule_rows(agent_id: str | None) -> list[dict[str, Any]]:
    """Return one row per schedule of the agent, or of all. Raises InputUnusable on a database without schedules."""
    async with open_log() as pool:
        if await pool.fetchval("SELECT to_regclass('apc_app.schedules')") is None:
            raise InputUnusable("this database holds no schedules: run `apc migrate`")
        return await list_schedules(pool, agent_id)

"""Schedules of agents: cron lines whose firings come as MESSAGE tick/1 (docs/how-to/timers.md)."""

from apc_agents.scheduling.schedule import Misfire, Schedule, Tick
from apc_agents.scheduling.store import MemoryScheduleStore, PostgresScheduleStore, ScheduleStore, list_schedules

__all__ = [
    "MemoryScheduleStore",
    "Misfire",
    "PostgresScheduleStore",
    "Schedule",
    "ScheduleStore",
    "Tick",
    "list_schedules",
]

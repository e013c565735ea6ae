"""Postgres: pools and connections that follow the primary, and the check of its durability."""

from apc_bus.database.away import DATABASE_AWAY, first_line, is_away, is_of_statement, is_passing
from apc_bus.database.durability import check_durability, undurable_settings
from apc_bus.database.primary import connect
from apc_bus.database.primary_pool import DatabasePool, note_failure, open_pool, problems_of

__all__ = [
    "DATABASE_AWAY",
    "DatabasePool",
    "check_durability",
    "connect",
    "first_line",
    "is_away",
    "is_of_statement",
    "is_passing",
    "note_failure",
    "open_pool",
    "problems_of",
    "undurable_settings",
]

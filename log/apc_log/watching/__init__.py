"""Queries that read the newest entries, and go on with what is logged later."""

from apc_log.watching.conflicts import list_conflicts
from apc_log.watching.news import NewsRow, list_news
from apc_log.watching.passage import Passage, passages
from apc_log.watching.refused import RefusedRow, count_late_heartbeats, list_refused
from apc_log.watching.stale_decisions import list_stale_decisions
from apc_log.watching.surroundings import read_surroundings

__all__ = [
    "NewsRow",
    "Passage",
    "RefusedRow",
    "count_late_heartbeats",
    "list_conflicts",
    "list_news",
    "list_refused",
    "list_stale_decisions",
    "passages",
    "read_surroundings",
]

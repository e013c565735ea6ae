"""A run while it goes on, read from the log: events for a live display."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg

from apc_automl.report import log_queries
from apc_automl.swarm.members import SENTINEL
from apc_contracts.vocabulary import ORCHESTRATOR, Signal

FOLLOWED_TYPES = ("EVAL", "TRANSFER", "SIGNAL")


@dataclass(frozen=True)
class Synced:
    """The session has reached a state or a generation."""

    state: str
    round: int
    generation: int
    scores: dict[str, float]


@dataclass(frozen=True)
class Measured:
    """A swarm has measured its model of a generation; `outcome` in 0..1 on held-out data."""

    swarm: str
    round: int
    generation: int
    outcome: float
    method: str


@dataclass(frozen=True)
class Offered:
    """A swarm has offered a recipe to another."""

    from_swarm: str
    to_swarm: str
    generation: int


@dataclass(frozen=True)
class Validated:
    """The sentinel has judged a final model on untouched data."""

    round: int
    outcome: float
    passed: bool


Event = Synced | Measured | Offered | Validated


async def follow_run(
    pool: asyncpg.Pool, run_id: str, poll: timedelta = timedelta(milliseconds=250)
) -> AsyncIterator[Event]:
    """Yield every event of a run, in the order of the log, from its beginning; ends when its session has ended.

    A run that has not begun is waited for.
    """
    place = (-1, 0)
    while True:
        is_over = await _is_over(pool, run_id)
        for row in await pool.fetch(log_queries.PACKETS, run_id, FOLLOWED_TYPES, *place):
            place = (row["shard"], row["seq"])
            event = _event(row)
            if event is not None:
                yield event
        if is_over:
            return
        await asyncio.sleep(poll.total_seconds())


async def _is_over(pool: asyncpg.Pool, run_id: str) -> bool:
    sessions = await pool.fetch(log_queries.SESSIONS, run_id)
    return bool(sessions) and all(row["is_terminal"] for row in sessions)


def _event(row: Any) -> Event | None:
    if row["verdict"] == "refused":
        return None
    payload = json.loads(row["body"])["payload"]
    match row["packet_type"]:
        case "SIGNAL" if payload["signal"] == Signal.SYNC and row["sender_agent_id"] == ORCHESTRATOR:
            session = payload["session"]
            return Synced(session["state"], session["round"], session["generation"], session["scores"])
        case "TRANSFER":
            return Offered(payload["from_swarm"], payload["to_swarm"], row["generation"])
        case "EVAL" if row["run_phase"] == "VALIDATION":
            return Validated(row["round"], payload["metric_set"]["outcome"], payload["pass"])
        case "EVAL" if row["run_phase"] != "EXECUTION" and row["sender_agent_id"] != SENTINEL:
            method = (payload.get("notes") or [""])[0]
            outcome = payload["metric_set"]["outcome"]
            return Measured(row["sender_swarm_id"], row["round"], row["generation"], outcome, method)
    return None

"""Checks of the registered agents: whether they receive what is sent to them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg

from apc_agents.effects import MAX_LISTED, UNSETTLED, EffectRecord, PostgresEffectStore
from apc_bus.port import QueueDepth
from apc_bus.topology import DEAD_QUEUE
from apc_cli.commands.agent import inbox_depths, listed
from apc_cli.doctor.finding import Finding, ok, warning
from apc_contracts.identity.registry import CLIENT, CLIENTS
from apc_contracts.text import numbered
from apc_contracts.vocabulary import Right
from apc_log.queries.health import count_dead_by_reason, count_set_aside

OPERATOR_FIX = (
    f"its inbox grows by each session that it starts: register a client in its place, which has none (`apc agent add "
    f"{CLIENT}-operator --role {CLIENT} --swarm {CLIENTS} --rights operate`); revoke it when no other command needs it"
)


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
    if not row["handles"] and Right.OPERATE in row["rights"]:
        said = f"{row['agent_id']}: may operate and handles nothing, so nobody reads its inbox{waits}"
        return warning("agents", said, OPERATOR_FIX)
    fix = f"start its worker, or `apc agent revoke {row['agent_id']}`"
    return warning("agents", f"{row['agent_id']}: {said}{waits}", fix)


# Checks of dead letters, in the broker and in the log, and of inputs that were set aside.

LETTERS_FIX = (
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
    """Check whether inputs have ended orchestrators lately, and were set aside."""
    count = await count_set_aside(pool, SET_ASIDE_DAYS)
    if not count:
        return []
    inputs = numbered(count, "input", "inputs")
    said = f"{inputs} ended the gate each time, within {SET_ASIDE_DAYS} days: packet_conflicts of kind unjudgeable"
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
    return [warning("dead letters", said, LETTERS_FIX)]


# Checks of handlers' side effects whose outcome is unknown.

EFFECTS_FIX = (
    "`apc effect list --state unknown --state result_lost` shows them; say what happened with `apc effect settle`"
)


async def look_at_effects(pool: asyncpg.Pool) -> list[Finding]:
    """Check effects that wait to be settled: how many, of which agents, since when."""
    try:
        records = await PostgresEffectStore(pool, is_patient=False).list(states=UNSETTLED, limit=MAX_LISTED)
    except asyncpg.InsufficientPrivilegeError:
        return [ok("effects", "not looked at: this database user may not read what agents keep")]
    return [_finding(records)] if records else [ok("effects", "none is unknown")]


def _finding(records: Sequence[EffectRecord]) -> Finding:
    agents = ", ".join(sorted({record.effect_id.agent_id for record in records}))
    hours = (datetime.now(UTC) - min(record.claimed_at for record in records)).total_seconds() / 3600
    count = f"{len(records)} or more wait" if len(records) == MAX_LISTED else numbered(len(records), "waits", "wait")
    return warning("effects", f"{count} to be settled (of {agents}), the oldest for {hours:.1f} h", EFFECTS_FIX)

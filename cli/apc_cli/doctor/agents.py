"""Checks of the registered agents: whether they receive what is sent to them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import asyncpg

from apc_agents.effects import MAX_LISTED, UNSETTLED, EffectRecord, PostgresEffectStore
from apc_bus.port import QueueDepth
from apc_bus.topology import DEAD_QUEUE
from apc_cli.commands.agent import inbox_depths, listed
from apc_cli.doctor.finding import Finding, ok, warning, wrong
from apc_contracts.identity.registry import CLIENT, CLIENTS
from apc_contracts.text import numbered
from apc_contracts.vocabulary import Right
from apc_log.heads import released_until
from apc_log.queries.health import count_dead_by_reason, count_set_aside, days_here

OPERATOR_FIX = (
    f"its inbox grows by each session that it starts: register a client in its place, which has none (`apc agent add "
    f"{CLIENT}-operator --role {CLIENT} --swarm {CLIENTS} --rights operate`); revoke it when no other command needs it"
)


async def look_at_agents(pool: asyncpg.Pool, depths: Mapping[str, QueueDepth]) -> list[Finding]:
    """Check each registered agent that handles something: is it alive, and are its queues consumed."""
    now = datetime.now(UTC)
    agents = [row for row in await listed(pool, now) if not row["is_revoked"]]
    alone = [row for row in agents if row["host"] is None]
    idle = [one for row in alone if (one := _idle(row, depths, now)) is not None]
    stopped = [*_stopped_hosts(agents, depths, now)]
    if idle or stopped or not agents:
        return [*stopped, *(finding for kind in KINDS for finding in _told(kind, idle))]
    registered = f"{numbered(len(agents), 'is', 'are')} registered"
    return [ok("agents", f"{registered}; each that handles something is alive and consumes")]


NAMED = 3
"""Agents of one kind that get their own findings; more are one finding."""
_UNCONSUMED, _SILENT = "nobody consumes its queues", "it is silent"
_UNREAD = "may operate and handles nothing, so nobody reads its inbox"
KINDS = (_UNCONSUMED, _SILENT, _UNREAD)


@dataclass(frozen=True, slots=True)
class _Idle:
    agent_id: str
    kind: str
    seen: str
    waiting: int


def _told(kind: str, idle: Sequence[_Idle]) -> list[Finding]:
    """Return the findings about the idle agents of one kind: one for each of a few, else one for all."""
    those = [one for one in idle if one.kind == kind]
    if len(those) <= NAMED or kind == _UNREAD:
        return [_finding_of(one) for one in those]
    named = ", ".join(one.agent_id for one in those[:NAMED])
    waiting = sum(one.waiting for one in those)
    waits = f"; {numbered(waiting, 'packet waits', 'packets wait')}" if waiting else ""
    what = "nobody consumes the queues of" if kind == _UNCONSUMED else "nothing was heard lately of"
    said = f"{what} {len(those)} agents: {named} and {len(those) - NAMED} more{waits}"
    fix = "start their workers, or `apc agent revoke` those that are gone; `apc agent list` shows all"
    return [warning("agents", said, fix)]


def _finding_of(one: _Idle) -> Finding:
    waits = f"; {numbered(one.waiting, 'packet waits', 'packets wait')}" if one.waiting else ""
    if one.kind == _UNREAD:
        return warning("agents", f"{one.agent_id}: {_UNREAD}{waits}", OPERATOR_FIX)
    said = f"{one.kind}; {one.seen}" if one.kind == _UNCONSUMED else one.seen
    fix = f"start its worker, or `apc agent revoke {one.agent_id}`"
    return warning("agents", f"{one.agent_id}: {said}{waits}", fix)


def _stopped_hosts(
    agents: Sequence[dict[str, Any]], depths: Mapping[str, QueueDepth], now: datetime
) -> Iterator[Finding]:
    """Yield a finding for each host that is not here: its agents give no other signs of life.

    The broker is asked, and what the gate has logged where the queues are unknown.
    """
    of_host = Counter(row["host"] for row in agents if row["host"] is not None)
    known = {row["host"]: row for row in agents}
    for host, count in sorted(of_host.items()):
        inbox, row = inbox_depths(depths, "", host), known[host]
        if all(depth.consumers for depth in inbox) if inbox else row["is_host_present"]:
            continue
        waiting = sum(depth.messages for depth in inbox)
        waits = f"; {numbered(waiting, 'packet waits', 'packets wait')}" if waiting else ""
        since = f", gone for {(now - row['host_changed_at']).total_seconds():.0f} s" if _is_gone(row) else ""
        cannot = f"so that {numbered(count, 'agent')} cannot work"
        said = f"host {host}: nobody consumes its queues{since}, {cannot}{waits}"
        yield warning("agents", said, f"start it: `apc serve agents --host {host} …`, or revoke its agents")


def _is_gone(row: Mapping[str, Any]) -> bool:
    return row["host_changed_at"] is not None and row["is_host_present"] is False


def _idle(row: dict[str, Any], depths: Mapping[str, QueueDepth], now: datetime) -> _Idle | None:
    inbox = inbox_depths(depths, row["agent_id"], None)
    waiting = sum(depth.messages for depth in inbox)
    is_consumed = bool(inbox) and all(depth.consumers for depth in inbox)
    if is_consumed and row["is_alive"]:
        return None
    if not row["handles"] and not waiting:
        return None  # an operator, who has no inbox
    seen = row["last_seen"]
    heard = "never heard of" if seen is None else f"last heard of {(now - seen).total_seconds():.0f} s ago"
    kind = _SILENT if is_consumed else _UNCONSUMED
    if not row["handles"] and Right.OPERATE in row["rights"]:
        kind = _UNREAD
    return _Idle(row["agent_id"], kind, heard, waiting)


# Checks of dead letters, in the broker and in the log, and of inputs that were set aside.

LETTERS_FIX = (
    "`apc dead-letter list` shows them; then `apc dead-letter requeue` sends them again, unless they have expired or "
    "their session has halted, or `discard` puts them to rest"
)
UNDELIVERABLE = frozenset({"no_route", "overflow"})
"""Reasons that say that an inbox is missing, not bound, or full."""
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
    days = await days_here(pool, SET_ASIDE_DAYS)
    count = await count_set_aside(pool, days)
    if not count:
        return []
    inputs = numbered(count, "input", "inputs")
    said = f"{inputs} ended the gate each time, within {numbered(days, 'day')}: packet_conflicts of kind unjudgeable"
    fix = "it is a defect of the gate, and nobody gets an answer to them: report it with its log lines (gate_failed)"
    return [warning("inputs set aside", said, fix)]


async def look_at_dead_letters(pool: asyncpg.Pool) -> list[Finding]:
    """Check deliveries that ended as dead letters and were neither requeued nor discarded: how many, and why."""
    rows = await count_dead_by_reason(pool)
    until = await released_until(pool)
    beside = "" if until is None else f"; not counted: sessions in the archive alone, up to {until:%Y-%m-%d %H:%M} UTC"
    if not rows:
        return [ok("dead letters", f"no delivery is one{beside}")]
    count = sum(row["deliveries"] for row in rows)
    reasons = [f"{row['deliveries']} {row['reason']}" for row in rows[:SHOWN]]
    if len(rows) > SHOWN:
        reasons.append("others")
    age = (datetime.now(UTC) - min(row["oldest"] for row in rows)).total_seconds()
    since = f"{age:.0f} s" if age < 3600 else f"{age / 3600:.0f} h"
    ended = numbered(count, "delivery", "deliveries")
    said = f"{ended} ended as dead letters ({', '.join(reasons)}), the oldest {since} ago{beside}"
    findings = [warning("dead letters", said, LETTERS_FIX)]
    unrouted = sum(row["deliveries"] for row in rows if row["reason"] in UNDELIVERABLE)
    if unrouted:
        said = f"{numbered(unrouted, 'delivery', 'deliveries')} found no inbox with room: the broker could not deliver"
        fix = f"`apc topology apply`, start the workers, then requeue: {LETTERS_FIX}"
        findings.append(wrong("dead letters", said, fix))
    return findings


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

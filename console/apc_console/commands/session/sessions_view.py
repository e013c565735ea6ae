"""`apc session list` and `apc session show`: the state of sessions, and what they may still spend."""

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_console.output.output import print_json, print_rows
from apc_contracts.payloads.budget_expression import RESOURCES
from apc_contracts.session import SessionDocument
from apc_contracts.session.budgets import budget_shares, memberships
from apc_log.queries import HeldRow, SessionRow, get_session, list_held_packets, list_sessions

Row = dict[str, Any]


async def print_sessions(run_id: str | None, *, only_running: bool, limit: int, as_json: bool) -> None:
    """Print one row per session, the latest first."""
    async with open_log() as pool:
        found = await list_sessions(pool, run_id=run_id, only_running=only_running, limit=limit)
    print_rows(
        [_summary(row) for row in found], title="sessions", as_json=as_json, empty="the log holds no such session"
    )


async def print_session(session_id: str, *, as_json: bool) -> None:
    """Print everything about one session. Raises InputUnusable when there is none."""
    async with open_log() as pool:
        row = await get_session(pool, session_id)
        if row is None:
            raise InputUnusable(f"the log holds no session {session_id!r}: `apc session list` shows them")
        held = await list_held_packets(pool, session_id)
    sections = {
        "session": [_details(row)],
        "budgets": [asdict(one) for one in budget_shares(row.document, datetime.now(UTC))],
        "members": [asdict(one) for one in memberships(row.document)],
        "pending_acks": _pending_acks(row.document),
        "deadlines": [{"kind": kind, "due": due} for kind, due in sorted(row.document.deadlines.items())],
        "held": [_held(one) for one in held],
    }
    if as_json or not sys.stdout.isatty():
        print_json({**sections, "session": sections["session"][0]})
        return
    for title, rows in sections.items():
        print_rows(rows, title=title.replace("_", " "), as_json=False, empty=f"no {title.replace('_', ' ')}")


def _summary(row: SessionRow) -> Row:
    document = row.document
    return {
        "session_id": row.session_id,
        "run_id": document.run_id,
        "state": document.state,
        "is_paused": document.paused_at is not None,
        "round": document.round,
        "generation": document.generation,
        "open_deliveries": row.open_deliveries,
        "spent": {name: document.spent[name] for name in RESOURCES if name in document.spent},
        "updated_at": row.updated_at,
        "why_halted": document.halt_reason if document.state == "HALTED" else None,
    }


def _details(row: SessionRow) -> Row:
    document = row.document
    return {
        **_summary(row),
        "run_phase": document.run_phase.value,
        "step": document.step,
        "generation_limit": document.generation_limit,
        "max_rounds": document.max_rounds,
        "opener": document.opener,
        "opened_at": document.opened_at,
        "paused_at": document.paused_at,
    }


def _pending_acks(document: SessionDocument) -> list[Row]:
    return [
        {
            "packet_id": packet_id,
            "sender": pending.sender,
            "missing": pending.missing,
            "attempt": pending.attempt,
            "retry_limit": pending.retry_limit,
            "due": document.deadlines.get(f"ack:{packet_id}:{pending.attempt}"),
        }
        for packet_id, pending in document.pending_acks.items()
    ]


def _held(row: HeldRow) -> Row:
    return {
        "packet_id": row.packet_id,
        "type": row.packet_type,
        "sender": row.sender_agent_id,
        "since": row.judged_at,
    }

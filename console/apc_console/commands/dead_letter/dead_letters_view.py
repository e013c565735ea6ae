"""`apc dead-letter list` and `apc dead-letter show`: which deliveries are dead, why, and their history."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

import asyncpg

from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_console.output.output import print_json, print_rows
from apc_log.queries import (
    DeadDelivery,
    DeliveryId,
    delivery_history,
    delivery_states,
    get_session,
    list_dead,
)
from apc_log.queries.questions import is_logged

_LISTED = (
    "session_id",
    "packet_id",
    "recipient",
    "attempt",
    "reason",
    "died_at",
    "packet_type",
    "sender",
    "expires_at",
)


Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which dead deliveries to select; None = any. `reason` is how the reason begins."""

    session_id: str | None = None
    recipient: str | None = None
    reason: str | None = None


async def dead_rows(narrowed: Filter, *, limit: int) -> list[Row]:
    """Return the dead deliveries in the order of the log. Raises InputUnusable for an unknown session."""
    async with open_log() as pool:
        found = await matching(pool, narrowed, limit=limit)
    return [{name: getattr(one, name) for name in _LISTED} for one in found]


async def dead_documents(packet_id: str, narrowed: Filter) -> list[Row]:
    """Return a packet's dead deliveries, each with its `hops`, oldest first. Raises InputUnusable when none is dead."""
    async with open_log() as pool:
        found = await dead_of(pool, [packet_id], narrowed)
        return [asdict(one) | {"hops": [asdict(hop) for hop in await delivery_history(pool, one.id)]} for one in found]


def print_documents(documents: Sequence[Row], *, as_json: bool) -> None:
    """Print dead deliveries and their hops."""
    if as_json or not sys.stdout.isatty():
        print_json(documents)
        return
    for document in documents:
        delivery = {name: value for name, value in document.items() if name != "hops"}
        title = f"{document['packet_id']} for {document['recipient']}"
        print_rows([delivery], title=title, as_json=False, empty="")
        print_rows([_hop(hop) for hop in document["hops"]], title="hops", as_json=False, empty="")


async def matching(pool: asyncpg.Pool, narrowed: Filter, *, limit: int | None = None) -> list[DeadDelivery]:
    """Return the dead deliveries that match. Raises InputUnusable for a session that the log does not hold."""
    if narrowed.session_id is not None and await get_session(pool, narrowed.session_id) is None:
        raise InputUnusable(
            f"--session: the log holds no session {narrowed.session_id!r}: `apc session list` shows them"
        )
    return await list_dead(
        pool, session_id=narrowed.session_id, recipient=narrowed.recipient, reason=narrowed.reason, limit=limit
    )


async def dead_of(pool: asyncpg.Pool, texts: Sequence[str], narrowed: Filter) -> list[DeadDelivery]:
    """Return the dead deliveries of these packets.

    Raises:
        InputUnusable: no UUID, a packet that the log does not hold, one that is not dead (any more) for the selected
    recipients, or an id that is dead in two sessions.
    """
    packet_ids = list(dict.fromkeys(map(_uuid, texts)))
    found = await list_dead(
        pool,
        session_id=narrowed.session_id,
        recipient=narrowed.recipient,
        reason=narrowed.reason,
        packet_ids=packet_ids,
    )
    sessions: dict[UUID, set[str]] = {packet_id: set() for packet_id in packet_ids}
    for one in found:
        sessions[one.packet_id].add(one.session_id)
    for packet_id, names in sessions.items():
        if not names:
            states = await delivery_states(pool, [packet_id])
            raise InputUnusable(await _why_not(pool, packet_id, states, narrowed))
        if len(names) > 1:
            raise InputUnusable(f"packet {packet_id} is dead in {', '.join(sorted(names))}: name one with --session")
    return found


async def _why_not(
    pool: asyncpg.Pool, packet_id: UUID, states: Mapping[DeliveryId, tuple[str, int]], narrowed: Filter
) -> str:
    if not states:
        if not await is_logged(pool, packet_id):
            return f"the log holds no packet {packet_id}"
        return f"packet {packet_id} is not dead: nobody has had a delivery of it"
    said = ", ".join(f"{one.recipient} {state} (attempt {attempt})" for one, (state, attempt) in sorted(states.items()))
    for_whom = " for those who are meant" if narrowed != Filter() else ""
    return f"packet {packet_id} is not dead{for_whom}: {said}"


def _hop(hop: Row) -> Row:
    """Return one row of a table; of several events of one hop, the time of the last."""
    shown = {name: hop[name] for name in ("attempt", "to_state", "events", "actor", "metadata")}
    return shown | {"occurred_at": hop["occurred_at"][-1]}


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise InputUnusable(
            f"{text!r} is no packet_id: a packet_id is a UUID, as `apc dead-letter list` shows it"
        ) from error

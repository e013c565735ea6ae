"""The SQL of the queries: one select a row type, and the clauses that narrow it down; values are
parameters."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import orjson
from asyncpg import Record

from apc_log.queries.rows import ConflictRow, CoordinationRow, PacketRow, TransitionRow

RowT = TypeVar("RowT", ConflictRow, PacketRow, TransitionRow, CoordinationRow)

_AS_TEXT = frozenset({"facts", "refusal", "metadata"})
"""JSON columns are read as text, whatever codec the pool has."""


def columns(row_type: type[Any], table: str) -> str:
    """Return the select list of a row type."""

    def column(name: str) -> str:
        if name == "body":
            return f"{table}.body_stored AS body"
        if name == "conflict":
            return f"{table}.kind AS conflict"
        return f"{table}.{name}::text AS {name}" if name in _AS_TEXT else f"{table}.{name}"

    return ", ".join(column(field.name) for field in fields(row_type))


def to_row(row_type: type[RowT], record: Record) -> RowT:
    """Return a record as a row."""
    values: dict[str, Any] = {field.name: record[field.name] for field in fields(row_type)}
    for name in _AS_TEXT & values.keys():
        if values[name] is not None:
            values[name] = orjson.loads(values[name])
    if "recipients" in values:
        values["recipients"] = tuple(values["recipients"])
    return row_type(**values)


FILTERS: Mapping[str, str] = {
    "run_id": "packet.run_id = {}",
    "session_id": "packet.session_id = {}",
    "task_id": "packet.task_id = {}",
    "packet_id": "(packet.shard, packet.seq) IN (SELECT shard, seq FROM apc_log.packet_ids WHERE packet_id = {})",
    "packet_type": "packet.packet_type = {}",
    "run_phase": "packet.run_phase = {}",
    "root_packet_id": "packet.root_packet_id = {}",
}
"""Filter name -> clause. Only the given ones are in the statement: a plan for all of them uses no index."""


def page_of_packets(given: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return a page of agent_packets behind a position.

    The parameters shard, seq and limit follow those of the filters.
    """
    clauses = [FILTERS[name].format(f"${at}") for at, name in enumerate(given, 1)]
    count = len(clauses)
    clauses.append(f"(packet.shard, packet.seq) > (${count + 1}, ${count + 2})")
    statement = (
        f"SELECT {columns(PacketRow, 'packet')} FROM apc_log.agent_packets AS packet "
        f"WHERE {' AND '.join(clauses)} ORDER BY packet.shard, packet.seq LIMIT ${count + 3}"
    )
    return statement, list(given.values())


STATES = """
SELECT now.state FROM apc_log.agent_packets AS packet
CROSS JOIN LATERAL apc_log.packet_states(packet.session_id, packet.packet_id, packet.recipients) AS now
WHERE packet.shard = $1 AND packet.seq = ANY($2::bigint[]) ORDER BY packet.seq
"""

TRANSITIONS = f"""
SELECT {columns(TransitionRow, "step")}
FROM unnest($1::text[], $2::uuid[]) AS wanted(session_id, packet_id)
JOIN apc_log.packet_transitions AS step USING (session_id, packet_id)
ORDER BY step.shard, step.seq, step.ordinal
"""

STALE = """
SELECT stale.session_id, stale.packet_id, stale.because_packet_id, stale.retraction_packet_id, stale.marked_at
FROM unnest($1::text[], $2::uuid[]) AS wanted(session_id, packet_id)
JOIN apc_log.packet_stale AS stale USING (session_id, packet_id)
"""

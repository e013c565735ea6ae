"""Compares what stands beside the entries with what follows from them: ids, counts, rulings, contracts."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import asyncpg
import orjson

from apc_log.heads import AnyConnection
from apc_persister.verification.findings import MOST_FINDINGS, LogFinding
from apc_persister.verification.verify import UNREADABLE


class _Compared(NamedTuple):
    """The columns of a table, the query that says what they must hold, and which rows it is about."""

    key: int
    """The first columns, so many, name a row."""
    columns: str
    wanted: str
    rows: str = "true"


_AT_REST = "run_id NOT IN (SELECT run_id FROM apc_log.unsummed_runs)"
_IN_DATABASE = """
NOT EXISTS (SELECT FROM apc_log.segments AS gone WHERE gone.state IN ('released', 'expired')
    AND gone.shard = run_blocks.shard
    AND run_blocks.block BETWEEN (gone.first_seq - 1) >> 16 AND (gone.last_seq - 1) >> 16)
"""
_COMPARED: Mapping[str, _Compared] = {
    "packet_ids": _Compared(
        2,
        "session_id, packet_id, packet_hash, shard, seq",
        "SELECT session_id, packet_id, packet_hash, shard, seq FROM apc_log.agent_packets",
    ),
    "transfer_rulings": _Compared(
        2,
        "shard, seq, judged_at, session_id, packet_id, run_id, task_id, protocol_id, parent_protocol_ids, "
        "refusal_code, is_accepted, cross_use_case, transfer_mode, from_swarm, to_swarm, sender_score, receiver_score",
        """
        SELECT shard, seq, judged_at, session_id, packet_id, run_id, task_id, protocol_id, parent_protocol_ids,
               refusal_code, is_accepted, cross_use_case, transfer_mode, from_swarm, to_swarm, sender_score,
               receiver_score
        FROM apc_log.judged_transfers
        """,
    ),
    "task_tallies": _Compared(
        3,
        "shard, run_id, task_id, evals, outcome_billionths, drift_evals, drift_billionths, transfers, accepted, "
        "cross_transfers, cross_accepted",
        """
        SELECT shard, run_id, task_id, coalesce(evals, 0), coalesce(outcome, 0)::bigint, coalesce(drift_evals, 0),
               coalesce(drift, 0)::bigint, coalesce(transfers, 0), coalesce(accepted, 0), coalesce(crossed, 0),
               coalesce(cross_accepted, 0)
        FROM (
            SELECT shard, run_id, task_id, count(outcome) AS evals, sum(apc_log.billionths(outcome)) AS outcome,
                   count(drift_risk) AS drift_evals, sum(apc_log.billionths(drift_risk)) AS drift
            FROM apc_log.eval_metrics GROUP BY shard, run_id, task_id
        ) AS scored
        FULL JOIN (
            SELECT shard, run_id, task_id, count(*) AS transfers, count(*) FILTER (WHERE is_accepted) AS accepted,
                   count(*) FILTER (WHERE cross_use_case) AS crossed,
                   count(*) FILTER (WHERE cross_use_case AND is_accepted) AS cross_accepted
            FROM apc_log.judged_transfers GROUP BY shard, run_id, task_id
        ) AS transferred USING (shard, run_id, task_id)
        """,
    ),
    "protocol_tallies": _Compared(
        5,
        "shard, protocol_id, transfer_mode, cross_use_case, refusal_code, transfers, sender_scores, sender_billionths, "
        "receiver_scores, receiver_billionths",
        """
        SELECT shard, protocol_id, transfer_mode, cross_use_case, coalesce(refusal_code, ''), count(*),
               count(sender_score), coalesce(sum(apc_log.billionths(sender_score)), 0)::bigint,
               count(receiver_score), coalesce(sum(apc_log.billionths(receiver_score)), 0)::bigint
        FROM apc_log.judged_transfers
        GROUP BY shard, protocol_id, transfer_mode, cross_use_case, coalesce(refusal_code, '')
        """,
    ),
    # Uses and their sums follow from the rulings, which are compared with the entries above, in the same snapshot.
    "protocol_tasks": _Compared(
        5,
        "protocol_id, run_id, task_id, refusal_code, shard",
        """
        SELECT DISTINCT protocol_id, run_id, task_id, coalesce(refusal_code, ''), shard FROM apc_log.transfer_rulings
        """,
    ),
    "protocol_runs": _Compared(
        4,
        "protocol_id, run_id, refusal_code, shard, last_judged_at",
        """
        SELECT protocol_id, run_id, coalesce(refusal_code, ''), shard, max(judged_at) FROM apc_log.transfer_rulings
        GROUP BY protocol_id, run_id, coalesce(refusal_code, ''), shard
        """,
    ),
    "run_changes": _Compared(
        2,
        "run_id, shard, seq, judged_at, summed_seq",
        # A run was summed up to one of its verdicts; to which one is free, for it is then summed again.
        """
        SELECT run_id, shard, max(verdict.seq), max(verdict.judged_at),
               max(verdict.seq) FILTER (WHERE verdict.seq = change.summed_seq)
        FROM apc_log.counted_verdicts AS verdict LEFT JOIN apc_log.run_changes AS change USING (run_id, shard)
        GROUP BY run_id, shard
        """,
    ),
    "run_blocks": _Compared(
        3,
        "run_id, shard, block",
        f"""
        SELECT * FROM (
            SELECT DISTINCT packet.run_id, packet.shard, (packet.seq - 1) >> 16 AS block
            FROM apc_log.agent_packets AS packet JOIN apc_log.followed AS place
              ON place.projection = 'run_blocks' AND place.shard = packet.shard AND place.seq >= packet.seq
            WHERE packet.run_id IS NOT NULL
        ) AS run_blocks WHERE {_IN_DATABASE}
        """,
        _IN_DATABASE,
    ),
    "summed_uses": _Compared(
        3,
        "run_id, protocol_id, task_id, refusal_codes, evals, outcome_billionths, drift_evals, drift_billionths",
        f"SELECT * FROM apc_log.uses_of_runs WHERE {_AT_REST}",
        _AT_REST,
    ),
    "protocol_sums": _Compared(
        3,
        "protocol_id, task_id, refusal_codes, tasks, evals, outcome_billionths, drift_evals, drift_billionths",
        """
        SELECT protocol_id, task_id, refusal_codes, count(*), sum(evals)::bigint, sum(outcome_billionths)::bigint,
               sum(drift_evals)::bigint, sum(drift_billionths)::bigint
        FROM apc_log.summed_uses GROUP BY protocol_id, task_id, refusal_codes
        """,
        "(tasks, evals, outcome_billionths, drift_evals, drift_billionths) <> (0, 0, 0, 0, 0)",
    ),
}
"""Table -> its columns, and the query that says from the entries what they must hold (sql/0105_analytics.sql and
0111_uses.sql)."""
_DIFFERENCES = """
WITH stored AS MATERIALIZED (SELECT {columns} FROM apc_log.{table} WHERE {rows} {open}),
     wanted ({columns}) AS MATERIALIZED (SELECT * FROM ({wanted}) AS one ({columns}) WHERE true {open}),
     extra AS MATERIALIZED (TABLE stored EXCEPT ALL TABLE wanted),
     lacking AS MATERIALIZED (TABLE wanted EXCEPT ALL TABLE stored)
SELECT to_jsonb(extra)::text AS stored, to_jsonb(lacking)::text AS wanted
FROM extra FULL JOIN lacking USING ({key}) LIMIT $1
"""
"""A row that differs stands in one line, as it is and as it should be; one of both is null where there is no other."""
_OPEN = "AND shard NOT IN (SELECT shard FROM apc_log.shards WHERE moved_to IS NOT NULL)"
"""A shard that moved to another database is counted there, and compared there."""
_DERIVED_COLUMNS = """
SELECT shard, coalesce(seq, 1) AS seq FROM apc_log.agent_packets
WHERE refers_to IS DISTINCT FROM CASE
          WHEN packet_type IN ('ARBITRATION', 'ARTIFACT') OR position('evidence_refs'::bytea IN body_stored) > 0
              OR position('\\\\u'::bytea IN body_stored) > 0
          THEN apc_log.references_in(packet_type, body_stored) END
   OR defines IS DISTINCT FROM CASE
          WHEN packet_type IN ('ARTIFACT', 'CLAIM', 'TASK_IR')
          THEN apc_log.definitions_in(packet_type, body_stored) END
ORDER BY shard, seq LIMIT $1
"""
"""The expressions of migrations/sql/0102_log.sql."""
_UNIQUE: Mapping[str, str] = {
    "packet_events": "session_id, packet_id, recipient, attempt, to_state",
    "packet_lineage": "session_id, packet_id",
    "coordination_events": "session_id, step, event",
}
"""What the indexes of a segment hold apart, and between segments the writer alone (apc_guard.divided)."""
_REPEATED = """
SELECT max(shard) AS shard, max(seq) AS seq FROM apc_log.{table} WHERE EXISTS (
    SELECT FROM apc_log.segments JOIN apc_log.shards USING (shard)
    WHERE first_seq > 1 AND first_seq < next_seq OR shard > 0
)
GROUP BY {columns} HAVING count(*) > 1 ORDER BY 1, 2 LIMIT $1
"""
_UNTOLD = """
SELECT shard, first_seq, state FROM apc_log.segments AS segment
WHERE state IN ('recorded', 'released', 'expired') AND (
    root IS DISTINCT FROM apc_guard.segment_root(shard, first_seq, last_seq)
    OR NOT EXISTS (
        SELECT FROM apc_log.log_events AS told
        WHERE told.shard = segment.shard AND told.seq = record_seq AND kind = 'segment'
        AND detail @> jsonb_build_object('first_seq', first_seq, 'last_seq', last_seq, 'root', encode(root, 'hex')))
    OR state <> 'recorded' AND NOT EXISTS (
        SELECT FROM apc_log.log_events AS told WHERE told.shard = segment.shard AND kind = 'release'
        AND detail @> jsonb_build_object('first_seq', first_seq, 'last_seq', last_seq))
    OR state = 'expired' AND NOT EXISTS (
        SELECT FROM apc_log.log_events AS told WHERE told.shard = segment.shard AND kind = 'expire'
        AND detail @> jsonb_build_object('first_seq', first_seq, 'last_seq', last_seq)))
ORDER BY shard, first_seq LIMIT $1
"""
"""Segments whose state no entry of the log tells, or that were recorded with another root than the tree has."""
# A log that no orchestrator has brought a contract (table contracts is empty) is played again under the available ones.
_CONTRACTS = """
SELECT coalesce(encode(contract_hash, 'hex'), 'NULL') AS name, 'the bytes do not have this hash' AS what
FROM apc_log.contracts WHERE contract_hash IS DISTINCT FROM sha256(document)
UNION ALL
SELECT encode(contract_hash, 'hex'), 'it is stored several times'
FROM apc_log.contracts GROUP BY contract_hash HAVING count(*) > 1
UNION ALL
SELECT encode(contract_hash, 'hex'), 'entries name it, and it is missing'
FROM (SELECT DISTINCT contract_hash FROM apc_log.agent_packets) AS named
WHERE EXISTS (SELECT FROM apc_log.contracts)
  AND NOT EXISTS (SELECT FROM apc_log.contracts AS kept WHERE kept.contract_hash = named.contract_hash)
LIMIT $1
"""
_LONGEST = 80


async def compare_derived(connection: AnyConnection) -> list[LogFinding]:
    """Compare the tables beside the log with its entries, as both are now; a finding for each row that differs.

    Raises:
        asyncpg.InsufficientPrivilegeError: the database's user may not read the log.
    """
    findings: list[LogFinding] = []
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        for table, compared in _COMPARED.items():
            names = [name.strip() for name in compared.columns.split(",")][: compared.key]
            known = {"key": ", ".join(names), "open": _OPEN if "shard" in compared.columns.split(", ") else ""}
            query = _DIFFERENCES.format(table=table, **compared._asdict() | known)
            for row in await _rows(connection, query, table, findings):
                findings.append(_difference(table, names, row["stored"], row["wanted"]))
        for row in await _rows(connection, _DERIVED_COLUMNS, "agent_packets", findings):
            message = "refers_to and defines are not what the bytes of the packet say"
            findings.append(LogFinding(row["shard"], row["seq"], message, f"entry {row['seq']}"))
        for table, columns in _UNIQUE.items():
            for row in await _rows(connection, _REPEATED.format(table=table, columns=columns), table, findings):
                message = f"another entry says the same: {columns} of {table}"
                findings.append(LogFinding(row["shard"], row["seq"], message, f"entry {row['seq']}"))
        for row in await _rows(connection, _UNTOLD, "segments", findings):
            first = row["first_seq"]
            message = (
                f"the segment from entry {first} is said to be {row['state']}: the entries or the tree say otherwise"
            )
            findings.append(LogFinding(row["shard"], first, message, f"segments {first}"))
        for row in await _rows(connection, _CONTRACTS, "contracts", findings):
            findings.append(LogFinding(None, 1, f"contract {row['name']}: {row['what']}", f"contracts {row['name']}"))
    return findings


def _difference(table: str, key: Sequence[str], stored: str | None, wanted: str | None) -> LogFinding:
    """Return the finding about a row: which one, and which of its columns differ."""
    found, expected = (None if text is None else orjson.loads(text) for text in (stored, wanted))
    row = found or expected or {}
    place = f"{table} {', '.join(f'{name}={_shown(row.get(name))}' for name in key)}"
    if found is None:
        return LogFinding(None, 1, f"{place}: the row is missing, and the entries say that it is there", place)
    if expected is None:
        return LogFinding(None, 1, f"{place}: the row follows from no entry, or stands twice", place)
    differing = [name for name in found if found[name] != expected[name]]
    columns = "; ".join(f"column {name} is {_shown(found[name])}, not {_shown(expected[name])}" for name in differing)
    return LogFinding(None, 1, f"{place}: {columns}", place)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


async def _rows(connection: AnyConnection, query: str, table: str, findings: list[LogFinding]) -> list[asyncpg.Record]:
    """Return the rows; none, and a finding, where the tables cannot be read."""
    try:
        async with connection.transaction():
            return await connection.fetch(query, MOST_FINDINGS)
    except asyncpg.InsufficientPrivilegeError:
        raise
    except UNREADABLE as error:
        findings.append(LogFinding(None, 1, f"{table} cannot be compared: {str(error).splitlines()[0]}", table))
        return []

"""Compares what stands beside the entries with what follows from them: ids, counts, rulings, contracts."""

from collections.abc import Mapping
from typing import NamedTuple

import asyncpg

from apc_log.heads import AnyConnection
from apc_persister.verification.findings import MOST_FINDINGS, LogFinding
from apc_persister.verification.verify import UNREADABLE


class _Compared(NamedTuple):
    """The columns of a table, the query that says what they must hold, and which rows it is about."""

    columns: str
    wanted: str
    rows: str = "true"


_AT_REST = "run_id NOT IN (SELECT run_id FROM apc_log.unsummed_runs)"
_COMPARED: Mapping[str, _Compared] = {
    "packet_ids": _Compared(
        "session_id, packet_id, packet_hash, shard, seq",
        "SELECT session_id, packet_id, packet_hash, shard, seq FROM apc_log.agent_packets",
    ),
    "transfer_rulings": _Compared(
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
        "protocol_id, run_id, task_id, refusal_code, shard",
        """
        SELECT DISTINCT protocol_id, run_id, task_id, coalesce(refusal_code, ''), shard FROM apc_log.transfer_rulings
        """,
    ),
    "protocol_runs": _Compared(
        "protocol_id, run_id, refusal_code, shard, last_judged_at",
        """
        SELECT protocol_id, run_id, coalesce(refusal_code, ''), shard, max(judged_at) FROM apc_log.transfer_rulings
        GROUP BY protocol_id, run_id, coalesce(refusal_code, ''), shard
        """,
    ),
    "run_changes": _Compared(
        "run_id, shard, seq, judged_at, summed_seq",
        # A run was summed up to one of its verdicts; to which one is free, for it is then summed again.
        """
        SELECT run_id, shard, max(verdict.seq), max(verdict.judged_at),
               max(verdict.seq) FILTER (WHERE verdict.seq = change.summed_seq)
        FROM apc_log.counted_verdicts AS verdict LEFT JOIN apc_log.run_changes AS change USING (run_id, shard)
        GROUP BY run_id, shard
        """,
    ),
    "summed_uses": _Compared(
        "run_id, protocol_id, task_id, refusal_codes, evals, outcome_billionths, drift_evals, drift_billionths",
        f"SELECT * FROM apc_log.uses_of_runs WHERE {_AT_REST}",
        _AT_REST,
    ),
    "protocol_sums": _Compared(
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
WITH stored AS MATERIALIZED (SELECT {columns} FROM apc_log.{table} WHERE {rows}),
     wanted ({columns}) AS MATERIALIZED ({wanted})
SELECT 'stored and does not follow from the entries' AS what, to_jsonb(one)::text AS row
FROM (TABLE stored EXCEPT ALL TABLE wanted) AS one
UNION ALL
SELECT 'missing, which follows from the entries', to_jsonb(one)::text
FROM (TABLE wanted EXCEPT ALL TABLE stored) AS one
LIMIT $1
"""
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
_LONGEST = 300


async def compare_derived(connection: AnyConnection) -> list[LogFinding]:
    """Compare the tables beside the log with its entries, as both are now; a finding for each row that differs.

    Raises:
        asyncpg.InsufficientPrivilegeError: the database's user may not read the log.
    """
    findings: list[LogFinding] = []
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        for table, compared in _COMPARED.items():
            query = _DIFFERENCES.format(table=table, **compared._asdict())
            for row in await _rows(connection, query, table, findings):
                message = f"a row of {table} is {row['what']}: {row['row'][:_LONGEST]}"
                findings.append(LogFinding(None, 1, message, table))
        for row in await _rows(connection, _DERIVED_COLUMNS, "agent_packets", findings):
            message = "refers_to and defines are not what the bytes of the packet say"
            findings.append(LogFinding(row["shard"], row["seq"], message, f"entry {row['seq']}"))
        for row in await _rows(connection, _CONTRACTS, "contracts", findings):
            findings.append(LogFinding(None, 1, f"contract {row['name']}: {row['what']}", f"contracts {row['name']}"))
    return findings


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

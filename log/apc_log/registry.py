"""The registry as the log holds it: agents, schemas, contracts; and the evidence that protocols are judged by."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import orjson

from apc_contracts.identity.registry import SPEAKS_OLDEST, Kind, Registration, Right
from apc_contracts.protocol.effectiveness import DecayDecision, DecayKind, EvalTally, RunTask, read_decision
from apc_contracts.protocol.ledger import JudgedTransfer, ProtocolLedger
from apc_contracts.schemas import RegisteredSchema, known_schema
from apc_contracts.vocabulary import PacketType

# Of each agent the change that view `agents` shows, and each schema as shard 0 has it, or the first shard that does.
_LOGGED = """
SELECT event.shard, event.seq, event.agent_id, event.change, event.change ->> 'action' AS action,
       count(*) OVER (PARTITION BY event.agent_id, event.shard) AS changes
FROM apc_log.registry_events AS event JOIN apc_log.log_edges AS tree USING (shard) WHERE event.seq <= tree.tree_size
"""
_ACCEPTED = f"""
SELECT DISTINCT ON (agent_id) agent_id, change -> 'schemas' AS schemas, change -> 'speaks' AS speaks
FROM ({_LOGGED}) AS logged WHERE action = 'add' ORDER BY agent_id, changes DESC, shard, seq DESC
"""
# One question: an agent that registers between two would stand in one answer only.
_AGENTS = f"""
SELECT agent.agent_id, broker_user, role, swarm_id, rights, handles, public_keys, is_revoked, schemas, speaks,
       event.change ->> 'kind' AS kind,
       ARRAY(SELECT jsonb_array_elements_text(coalesce(event.change -> 'via', '[]'))) AS via
FROM apc_log.agents AS agent
LEFT JOIN ({_ACCEPTED}) AS accepted USING (agent_id)
LEFT JOIN LATERAL (
    SELECT change FROM apc_log.registry_events AS one WHERE one.change_id = agent.change_id LIMIT 1
) AS event ON true ORDER BY agent.agent_id
"""
_SCHEMAS = f"""
SELECT DISTINCT ON (agent_id) change ->> 'schema' AS schema_id, change -> 'document' AS document
FROM ({_LOGGED}) AS logged WHERE action = 'schema' ORDER BY agent_id, shard, seq
"""
_CONTRACTS = f"""
SELECT DISTINCT ON (agent_id) change ->> 'name' AS name, (change ->> 'revision')::bigint AS revision,
       change ->> 'document' AS document
FROM ({_LOGGED}) AS logged WHERE action = 'contract' ORDER BY agent_id, (change ->> 'revision')::bigint DESC, shard
"""
_CHANGES = "SELECT change_id FROM apc_log.registry_events WHERE shard = $1"
_SHARDS = "SELECT DISTINCT shard FROM apc_log.registry_events WHERE change_id = $1"
_RECORDED = "SELECT count(DISTINCT (shard, change_id)) FROM apc_log.registry_events WHERE change_id = ANY($1)"


async def read_registry(pool: asyncpg.Pool) -> dict[str, Registration]:
    """Return every agent that was ever registered, revoked ones too, by its id."""
    return {row["agent_id"]: _registration(row) for row in await pool.fetch(_AGENTS)}


async def read_schemas(pool: asyncpg.Pool) -> dict[str, RegisteredSchema]:
    """Return every registered schema by its id."""
    rows = await pool.fetch(_SCHEMAS)
    return {row["schema_id"]: known_schema(row["schema_id"], orjson.loads(row["document"])) for row in rows}


@dataclass(frozen=True, slots=True)
class LoggedContract:
    """The newest revision of a registered contract; `document` is the file's text."""

    name: str
    revision: int
    document: str


async def read_contracts(pool: asyncpg.Pool) -> list[LoggedContract]:
    """Return the newest revision of every registered contract, by name."""
    return [LoggedContract(**row) for row in await pool.fetch(_CONTRACTS)]


async def registered_agents(pool: asyncpg.Pool) -> list[Registration]:
    """Return every agent that is registered and not revoked; people are none."""
    return [one for one in (await read_registry(pool)).values() if not one.is_revoked and one.kind is Kind.AGENT]


async def registered_people(pool: asyncpg.Pool) -> list[Registration]:
    """Return every person that is registered and not revoked."""
    return [one for one in (await read_registry(pool)).values() if not one.is_revoked and one.kind is Kind.PERSON]


async def read_changes(pool: asyncpg.Pool, shard: int) -> set[UUID]:
    """Return the ids of the changes that this shard has logged."""
    return {row["change_id"] for row in await pool.fetch(_CHANGES, shard)}


async def shards_with(pool: asyncpg.Pool, change: UUID) -> set[int]:
    """Return the shards whose log has a change."""
    return {row["shard"] for row in await pool.fetch(_SHARDS, change)}


async def count_recorded(pool: asyncpg.Pool, changes: Iterable[UUID]) -> int:
    """Return how often these changes are in the log, each counted once for every shard."""
    recorded: int = await pool.fetchval(_RECORDED, list(changes))
    return recorded


def _registration(row: asyncpg.Record) -> Registration:
    return Registration(
        agent_id=row["agent_id"],
        broker_user=row["broker_user"],
        role=row["role"],
        swarm_id=row["swarm_id"],
        rights=frozenset(Right(right) for right in row["rights"]),
        handles=frozenset(PacketType(packet_type) for packet_type in row["handles"]),
        public_keys=orjson.loads(row["public_keys"]),
        is_revoked=row["is_revoked"],
        schemas=frozenset(orjson.loads(row["schemas"] or "[]")),
        kind=Kind(row["kind"] or Kind.AGENT),
        via=frozenset(row["via"]),
        speaks=frozenset(orjson.loads(row["speaks"] or "[]")) or SPEAKS_OLDEST,
    )


# What protocols are measured by, for the gate and for the queries: the views of migrations/sql/0105_analytics.sql and
# what the persister keeps of them, in the order in which the verdicts were given.

HEADS = "SELECT shard, next_seq - 1 AS last FROM apc_log.shards"
# EVALs matter in runs with transfers, and in those that may still have some.
SCORES = """
SELECT run_id, task_id, sum(evals)::bigint AS evals, sum(outcome_billionths)::bigint AS outcome,
       sum(drift_evals)::bigint AS drift_evals, sum(drift_billionths)::bigint AS drift
FROM apc_log.task_tallies
WHERE run_id IN (
    SELECT run_id FROM apc_log.task_tallies WHERE transfers > 0 UNION SELECT run_id FROM apc_log.sessions WHERE is_open)
GROUP BY run_id, task_id
HAVING sum(evals) > 0
"""
TRANSFERS = """
SELECT judged_at, shard, seq, protocol_id, parent_protocol_ids, run_id, task_id, refusal_code
FROM apc_log.transfer_rulings
"""
DECISIONS = "SELECT judged_at, shard, seq, decay::text AS decay FROM apc_log.decay_decisions"
EVALS = "SELECT run_id, task_id, outcome, drift_risk FROM apc_log.eval_metrics"
MEASURED = " AND outcome IS NOT NULL"
"""Open metrics of apc/1.1 say nothing of protocols."""
LATER = " WHERE shard = $1 AND seq > $2 AND seq <= $3"

Positions = dict[int, int]
"""shard -> the last seq that was read."""


class EvidencePosition(NamedTuple):
    """Where an event stands among those of all shards. `rank` puts a recovery before the verdicts of its moment: it is
    logged after the TRANSFER that touched the protocol, but that one counts after it already."""

    at: datetime
    rank: int
    shard: int
    seq: int


async def read_scores(connection: Any) -> dict[RunTask, EvalTally]:
    """Return the EVALs of every (run, task) with transfers, and of open runs."""
    return {
        (row["run_id"], row["task_id"]): EvalTally(row["evals"], row["outcome"], row["drift_evals"], row["drift"])
        for row in await connection.fetch(SCORES)
    }


async def read_transfers(connection: Any, *, shard: int | None = None, after: int = 0, last: int = 0) -> list[Any]:
    """Read final verdicts on TRANSFERs as (Place, JudgedTransfer): all, or a shard's behind `after` up to `last`."""
    rows = await _rows(connection, TRANSFERS, shard, after, last)
    return [(EvidencePosition(row["judged_at"], 1, row["shard"], row["seq"]), _transfer(row)) for row in rows]


async def read_decisions(connection: Any, *, shard: int | None = None, after: int = 0, last: int = 0) -> list[Any]:
    """Yield blocks and recoveries as (Place, DecayDecision), like `read_transfers`."""
    decisions = []
    for row in await _rows(connection, DECISIONS, shard, after, last):
        decision = read_decision(orjson.loads(row["decay"]))
        rank = 0 if decision.kind is DecayKind.RECOVERED else 2
        decisions.append((EvidencePosition(row["judged_at"], rank, row["shard"], row["seq"]), decision))
    return decisions


def recall(ledger: ProtocolLedger, events: Iterable[tuple[EvidencePosition, JudgedTransfer | DecayDecision]]) -> None:
    """Feed a ledger in order; it decides nothing."""
    for _, event in sorted(events, key=lambda event: event[0]):
        if isinstance(event, JudgedTransfer):
            ledger.recall_transfer(event)
        else:
            ledger.apply(event)


async def read_ledger(pool: asyncpg.Pool, ledger: ProtocolLedger) -> Positions:
    """Feed an empty ledger everything that the log holds; how far that was."""
    async with (
        pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        positions = {row["shard"]: row["last"] for row in await connection.fetch(HEADS)}
        for task, scores in (await read_scores(connection)).items():
            ledger.recall_scores(task, scores)
        recall(ledger, [*await read_transfers(connection), *await read_decisions(connection)])
    return positions


async def read_shard(connection: Any, ledger: ProtocolLedger, shard: int, after: int, last: int) -> None:
    """Feed a ledger what a shard judged behind `after`, up to `last`."""
    evals = await connection.fetch(EVALS + LATER + MEASURED, shard, after, last)
    transfers = await read_transfers(connection, shard=shard, after=after, last=last)
    decisions = await read_decisions(connection, shard=shard, after=after, last=last)
    # Nothing is awaited from here on: anyone who asks the ledger meanwhile finds all of it or nothing.
    for row in evals:
        ledger.recall_eval((row["run_id"], row["task_id"]), row["outcome"], row["drift_risk"])
    recall(ledger, [*transfers, *decisions])


async def _rows(connection: Any, query: str, shard: int | None, after: int, last: int) -> list[Any]:
    rows: list[Any]
    if shard is None:
        rows = await connection.fetch(query)
    else:
        rows = await connection.fetch(query + LATER, shard, after, last)
    return rows


def _transfer(row: Any) -> JudgedTransfer:
    task = (row["run_id"], row["task_id"])
    return JudgedTransfer(row["protocol_id"], tuple(row["parent_protocol_ids"]), task, row["refusal_code"])

"""Lineage analytics against a reference that counts one packet after another, over logs that hypothesis makes up."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from statistics import StatisticsError, correlation, mean
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.log import LogBench, ScriptedGate, packet_entry

from apc_bus.database import open_pool
from apc_bus.in_memory import InMemoryBroker
from apc_bus.settings import PersisterSettings
from apc_bus.topology import build_topology
from apc_contracts.contract.contract import load_contract
from apc_contracts.protocol.effectiveness import effectiveness
from apc_log.batch import Entry, HopEntry, LineageEntry, PacketEntry
from apc_log.heads import AnyConnection
from apc_log.queries import (
    get_packet_lineage_summary,
    get_protocol_effectiveness,
    get_transfer_eval_correlation,
    get_transfer_quality_rollup,
    get_transfer_refusals,
    list_protocol_propagation,
    list_protocols,
)
from apc_persister.rebuild import COUNTS as TALLIED
from apc_persister.rebuild import rebuild_projections
from apc_persister.verification.derived import compare_derived

CONTRACT = load_contract()
RULES = CONTRACT.effectiveness
MODES = ("WINNER_TO_LOSERS", "CROSS_USE_CASE", "COMMONS_SEED")
CODES = (None, None, "THROTTLE_SCORE", "THROTTLE_TOP_K", "NOT_AUTHORIZED")
SCORES = st.sampled_from([0.0, 0.125, 0.25, 0.5, 0.75, 1.0])
TASKS = st.tuples(st.sampled_from(["run-a", "run-b"]), st.sampled_from(["task-1", "task-2", "task-3"]))


@dataclass(frozen=True)
class Transfer:
    shard: int
    task: tuple[str, str]
    protocol_id: str
    mode: str
    is_cross: bool
    sender_score: float
    code: str | None
    is_held: bool


@dataclass(frozen=True)
class Eval:
    shard: int
    task: tuple[str, str]
    outcome: float
    drift: float | None
    is_refused: bool
    measures: str | None = None
    """The protocol that its lineage names."""


SHARDS = st.integers(0, 1)
TRANSFERS = st.builds(
    Transfer, SHARDS, TASKS, st.sampled_from("pqr"), st.sampled_from(MODES), st.booleans(), SCORES,
    st.sampled_from(CODES), st.booleans(),
)  # fmt: skip
EVALS = st.builds(
    Eval, SHARDS, TASKS, SCORES, st.none() | SCORES, st.sampled_from([False, False, True]),
    st.none() | st.sampled_from("pqx"),
)  # fmt: skip
COUNTS = tuple(f"apc_log.{table}" for table in TALLIED)
LOGS = st.lists(TRANSFERS | EVALS, min_size=1, max_size=25)
AT_REST = st.sets(st.sampled_from(["run-a", "run-b"]))
SUM_RUN = "SELECT apc_log.sum_run(run_id) FROM apc_log.run_changes WHERE run_id = $1 GROUP BY run_id"


@pytest.mark.long
def test_every_figure_is_what_counting_gives(postgres_url: str) -> None:
    """One log grows from example to example: each is compared whole, by run and by protocol.

    Some runs are summed before it grows: what comes later to such a run is read from the counts. Others are summed
    after it.
    """
    said: list[Transfer | Eval] = []

    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(LOGS, AT_REST, AT_REST)
    def grow(more: list[Transfer | Eval], before: set[str], after: set[str]) -> None:
        said.extend(more)
        asyncio.run(write_and_compare(postgres_url, more, said, before, after))

    grow()


async def write_and_compare(
    url: str, more: Sequence[Transfer | Eval], said: Sequence[Transfer | Eval], before: set[str], after: set[str]
) -> None:
    pool = await open_pool(url, max_size=4)
    try:
        await pool.executemany(SUM_RUN, [(run,) for run in before])
        broker = InMemoryBroker(build_topology(2))
        gates = [ScriptedGate(broker.connect("orchestrator"), shard) for shard in (0, 1)]
        for gate in gates:
            epoch = "SELECT coalesce(max(epoch), 0) FROM apc_log.shards WHERE shard = $1"
            gate.epoch = await pool.fetchval(epoch, gate.shard)
            await gate.open()
            await log(gate, [entry for one in more if one.shard == gate.shard for entry in entries_of(one)])
        await LogBench(gates[0], broker.connect("persister"), pool, PersisterSettings(shards=2)).write()
        await pool.executemany(SUM_RUN, [(run,) for run in after])
        for run_id in (None, "run-a"):
            for protocol_id in (None, "q"):
                await compare(pool, said, run_id, protocol_id)
        async with pool.acquire() as connection:
            assert await compare_derived(connection) == []
        await compare_counts_with_the_log(pool)
    finally:
        await pool.close()


async def log(gate: ScriptedGate, entries: Sequence[Entry]) -> None:
    """Hops stand in a batch behind the packets: they end a wait."""
    hops: list[Entry] = [one for one in entries if isinstance(one, HopEntry)]
    for batch in ([one for one in entries if not isinstance(one, HopEntry)], hops):
        if batch:
            await gate.log(batch)


async def compare_counts_with_the_log(pool: asyncpg.Pool) -> None:
    """What the writer has counted transaction by transaction is what the log says when it is counted at once."""
    async with pool.acquire() as connection:
        kept = await read_counts(connection)
        undone = connection.transaction()
        await undone.start()
        for table in COUNTS:
            await connection.execute(f"DELETE FROM {table}")
        await rebuild_projections(connection)
        assert await read_counts(connection) == kept
        await undone.rollback()


async def read_counts(connection: AnyConnection) -> dict[str, list[tuple[Any, ...]]]:
    return {table: sorted(map(tuple, await connection.fetch(f"SELECT * FROM {table}"))) for table in COUNTS}


def entries_of(said: Transfer | Eval) -> list[Entry]:
    """Return the entries that the gate logs of it; a held TRANSFER's verdict is a hop of a later batch."""
    run_id, task_id = said.task
    if isinstance(said, Eval):
        metrics = {"outcome": said.outcome} | ({} if said.drift is None else {"drift_risk": said.drift})
        code = "QUOTA_EXCEEDED" if said.is_refused else None
        packet = packet_entry(run_id=run_id, task_id=task_id, packet_type="EVAL", refusal_code=code)
        return [with_body(packet, {"payload": {"metric_set": metrics}}), *measured_by(packet, said.measures)]
    packet = packet_entry(
        run_id=run_id,
        task_id=task_id,
        packet_type="TRANSFER",
        refusal_code=None if said.is_held else said.code,
    )
    if said.is_held:
        packet = replace(packet, verdict="held")
    lineage = LineageEntry(
        packet.session_id, packet.packet_id, said.protocol_id, [], [], said.is_cross, said.mode, "red", "blue",
        said.sender_score, 0.5,
    )  # fmt: skip
    return [packet, lineage, *([verdict_on(packet, said.code)] if said.is_held else [])]


def measured_by(packet: PacketEntry, protocol_id: str | None, parents: Sequence[str] = ()) -> list[LineageEntry]:
    """Return the lineage of an EVAL."""
    if protocol_id is None:
        return []
    nothing = (None, None, None, None)
    return [LineageEntry(packet.session_id, packet.packet_id, protocol_id, list(parents), [], False, "", *nothing)]


def with_body(packet: PacketEntry, body: dict[str, Any]) -> PacketEntry:
    content = json.dumps(body | {"packet_id": str(packet.packet_id)}).encode()
    return replace(packet, body=content, packet_hash=sha256(content).digest())


def verdict_on(packet: PacketEntry, code: str | None) -> HopEntry:
    to_state, events = ("ROUTED", ["policy_pass", "route_selected"]) if code is None else ("REJECTED_POLICY", ["x"])
    metadata = None if code is None else json.dumps({"refusal": {"code": code}}).encode()
    return HopEntry(
        packet.session_id, packet.packet_id, "", 1, "SCHEMA_VALIDATED", to_state, events,
        [packet.created_at] * len(events), "orchestrator", metadata,
    )  # fmt: skip


async def compare(
    pool: asyncpg.Pool, said: Sequence[Transfer | Eval], run_id: str | None, protocol_id: str | None
) -> None:
    """Every query against plain counting."""
    transfers = [
        one
        for one in said
        if isinstance(one, Transfer) and run_id in (None, one.task[0]) and protocol_id in (None, one.protocol_id)
    ]
    in_run = [one for one in said if isinstance(one, Transfer) and run_id in (None, one.task[0])]
    evals = [one for one in said if isinstance(one, Eval) and not one.is_refused]
    counted = [one for one in transfers if one.code is None or one.code in RULES.counted_refusals]
    measuring = [one for one in evals if run_id in (None, one.task[0])]
    everywhere = [one for one in said if isinstance(one, Transfer) and (one.code in (None, *RULES.counted_refusals))]
    found = await get_protocol_effectiveness(pool, CONTRACT, run_id=run_id, protocol_id=protocol_id)
    expected = {
        name: counted_figures(name, counted, everywhere, evals)
        | compared_figures([one for one in measuring if one.measures == name], evals)
        for name in {one.protocol_id for one in counted}
    }
    assert {row.protocol_id for row in found} == expected.keys()
    for row in found:
        own = {name: getattr(row, name) for name in expected[row.protocol_id]}
        empty = {name for name, value in expected[row.protocol_id].items() if value is None}
        assert {name for name, value in own.items() if value is None} == empty
        known = {name: value for name, value in expected[row.protocol_id].items() if value is not None}
        assert {name: own[name] for name in known} == pytest.approx(known, abs=1e-8)
    assert [(-row.transfers, row.protocol_id) for row in found] == sorted((-r.transfers, r.protocol_id) for r in found)
    await compare_rollups(pool, transfers, in_run, evals, run_id, protocol_id)
    summary = await get_packet_lineage_summary(pool, CONTRACT, run_id=run_id, protocol_id=protocol_id)
    assert list(summary.protocols) == found
    if protocol_id is None:
        assert [row.figures for row in await list_protocols(pool, CONTRACT, run_id=run_id)] == found


def counted_figures(
    name: str, counted: Sequence[Transfer], everywhere: Sequence[Transfer], evals: Sequence[Eval]
) -> dict[str, float | None]:
    """docs/specification/contract.md section 6, packet by packet."""
    own = [one for one in counted if one.protocol_id == name]
    tasks = {one.task for one in own}
    scored = [one for one in evals if one.task in tasks]
    outcome = mean([one.outcome for one in scored] or [0.0])
    drift = mean([one.drift for one in scored if one.drift is not None] or [0.0])
    acceptance = mean(one.code is None for one in own)
    return {
        "transfers": len(own),
        "accepted": sum(one.code is None for one in own),
        "runs": len({run for run, _ in tasks}),
        "runs_in_log": len({one.task[0] for one in everywhere if one.protocol_id == name}),
        "tasks": len(tasks),
        "cross_use_case": sum(one.is_cross for one in own),
        "acceptance_rate": acceptance,
        "average_outcome": outcome,
        "average_drift_risk": drift,
        "effectiveness": effectiveness(acceptance, outcome, drift, RULES),
    }


def compared_figures(own: Sequence[Eval], evals: Sequence[Eval]) -> dict[str, float | None]:
    """A protocol's EVALs against all of their tasks; one that stands alone in its task shows nothing."""

    def lift(metric: str) -> tuple[list[float], list[float]]:
        mine: dict[str, list[float]] = defaultdict(list)
        for one in own:
            if getattr(one, metric) is not None:
                mine[one.task[1]].append(getattr(one, metric))
        usual = {
            task: [getattr(one, metric) for one in evals if one.task[1] == task and getattr(one, metric) is not None]
            for task in mine
        }
        kept = [task for task in mine if len(usual[task]) > len(mine[task])]
        values = [value - mean(usual[task]) for task in kept for value in mine[task]]
        return values, [value for task in kept for value in mine[task]]

    outcome, compared = lift("outcome")
    drift, _ = lift("drift")
    return {
        "outcome_lift": mean(outcome) if outcome else None,
        "drift_delta": mean(drift) if drift else None,
        "compared_evals": len(compared),
        "import_lift": None,
        "imports": 0,
    }


async def compare_rollups(
    pool: asyncpg.Pool,
    transfers: Sequence[Transfer],
    in_run: Sequence[Transfer],
    evals: Sequence[Eval],
    run_id: str | None,
    protocol_id: str | None,
) -> None:
    modes = {row.transfer_mode: row for row in await get_transfer_quality_rollup(
        pool, run_id=run_id, protocol_id=protocol_id
    )}  # fmt: skip
    assert modes.keys() == {one.mode for one in transfers}
    for mode, row in modes.items():
        own = [one for one in transfers if one.mode == mode]
        assert (row.transfers, row.accepted) == (len(own), sum(one.code is None for one in own))
        assert row.share == pytest.approx(len(own) / len(transfers))
        assert row.average_sender_score == pytest.approx(mean(one.sender_score for one in own))
    for kind in await get_transfer_eval_correlation(pool, run_id=run_id):
        own = [one for one in in_run if one.is_cross == kind.cross_use_case]
        accepted: dict[tuple[str, str], int] = defaultdict(int)
        for one in own:
            accepted[one.task] += one.code is None
        drifts = {task: drift for task in accepted if (drift := average_drift(task, evals)) is not None}
        assert (kind.tasks, kind.transfers) == (len(accepted), len(own))
        assert kind.average_drift_risk == (pytest.approx(mean(drifts.values())) if drifts else None)
        expected = pearson([accepted[task] for task in drifts], list(drifts.values()))
        assert kind.drift_correlation == (None if expected is None else pytest.approx(expected, abs=1e-9))
    rows = await list_protocol_propagation(pool, run_id=run_id, protocol_id=protocol_id, limit=1000)
    assert sorted(row.refusal_code or "" for row in rows) == sorted(one.code or "" for one in transfers)
    assert rows == sorted(rows, key=lambda row: row.cursor, reverse=True)
    refused = Counter(one.code for one in transfers if one.code is not None)
    assert await get_transfer_refusals(pool, run_id=run_id, protocol_id=protocol_id) == refused
    paged, before = [], None
    while page := await list_protocol_propagation(
        pool, run_id=run_id, protocol_id=protocol_id, limit=7, before=before
    ):  # fmt: skip
        paged += page
        before = page[-1].cursor
    assert paged == rows


def average_drift(task: tuple[str, str], evals: Sequence[Eval]) -> float | None:
    drifts = [one.drift for one in evals if one.task == task and one.drift is not None]
    return mean(drifts) if drifts else None


def pearson(one: Sequence[float], other: Sequence[float]) -> float | None:
    try:
        return correlation(one, other)
    except StatisticsError:
        return None

"""Lift ranks protocols: by the EVALs that measured them, and by what receivers reached with them."""

import random
from collections.abc import Iterable

import asyncpg
import pytest
from msgspec.structs import replace
from tests.persister.queries.test_lineage import measured_by, with_body
from tests.support.log import LogBench, packet_entry

from apc_contracts.contract.contract import load_contract
from apc_log.batch import Entry, LineageEntry
from apc_log.queries import ProtocolEffectiveness, get_protocol_effectiveness

QUALITY = {"poor": 0.55, "fair": 0.6, "good": 0.65}
SEEDS = 20


def _transfer(protocol: str, run: str, receiver_score: float | None = 0.5) -> list[Entry]:
    packet = packet_entry(session_id=run, run_id=run, task_id="task", packet_type="TRANSFER")
    names = (packet.session_id, packet.packet_id, protocol, list[str](), list[str](), False, "WINNER_TO_LOSERS")
    return [packet, LineageEntry(*names, "red", "blue", 0.9, receiver_score)]


def _eval(
    protocol: str | None, run: str, outcome: float, *, parents: Iterable[str] = (), swarm: str = "red"
) -> list[Entry]:
    packet = packet_entry(session_id=run, run_id=run, task_id="task", packet_type="EVAL")
    packet = with_body(replace(packet, sender_swarm_id=swarm), {"payload": {"metric_set": {"outcome": outcome}}})
    return [packet, *measured_by(packet, protocol, list(parents))]


async def _figures(pool: asyncpg.Pool, run: str | None) -> dict[str, ProtocolEffectiveness]:
    return {row.protocol_id: row for row in await get_protocol_effectiveness(pool, load_contract(), run_id=run)}


async def test_three_protocols_of_known_quality_are_ranked(bench: LogBench) -> None:
    """Noise of 0.03 around qualities that are 0.05 apart, twelve EVALs each, all in one task of a run."""
    await bench.gate.open()
    for seed in range(SEEDS):
        chance, run = random.Random(seed), f"run-{seed}"
        entries = [entry for protocol in QUALITY for entry in _transfer(protocol, run)]
        for protocol, quality in QUALITY.items():
            for _ in range(12):
                entries += _eval(protocol, run, min(1.0, max(0.0, chance.gauss(quality, 0.03))))
        await bench.gate.log(entries)
    await bench.write()
    right = 0
    for seed in range(SEEDS):
        rows = await _figures(bench.pool, f"run-{seed}")
        assert {row.compared_evals for row in rows.values()} == {12}
        assert len({row.average_outcome for row in rows.values()}) == 1, "the task's average ranks nothing"
        right += sorted(rows, key=lambda name: rows[name].outcome_lift or 0) == list(QUALITY)
    assert right >= 19
    over_all = await _figures(bench.pool, None)
    assert sorted(over_all, key=lambda name: over_all[name].outcome_lift or 0) == list(QUALITY)


async def test_without_evidence_there_is_no_figure(bench: LogBench) -> None:
    await bench.gate.open()
    await bench.gate.log([*_transfer("alone", "run-1"), *_eval("alone", "run-1", 0.7)])
    await bench.gate.log([*_transfer("unmeasured", "run-2"), *_eval(None, "run-2", 0.7)])
    await bench.write()
    for name, run in (("alone", "run-1"), ("unmeasured", "run-2")):
        row = (await _figures(bench.pool, run))[name]
        assert (row.import_lift, row.imports) == (None, 0)
        assert row.average_outcome == pytest.approx(0.7)
    unmeasured = (await _figures(bench.pool, None))["unmeasured"]
    assert (unmeasured.outcome_lift, unmeasured.drift_delta, unmeasured.compared_evals) == (None, None, 0)


async def test_an_import_counts_by_what_the_receiver_reached_after_it(bench: LogBench) -> None:
    before = _eval("own", "run-1", 0.5, swarm="blue")
    arrived = [*_transfer("seed", "run-1", 0.5), *_transfer("unused", "run-1", 0.5)]
    after = [
        *_eval("child", "run-1", 0.6, parents=["seed"], swarm="blue"),
        *_eval("seed", "run-1", 0.7, swarm="blue"),
        *_eval("child", "run-1", 0.9, parents=["seed"], swarm="green"),
        *_eval("other", "run-1", 0.95, swarm="blue"),
    ]
    await bench.gate.open()
    for entries in (before, arrived, after):
        await bench.gate.log(entries)
    await bench.write()
    rows = await _figures(bench.pool, "run-1")
    assert rows["seed"].import_lift == pytest.approx(0.2) and rows["seed"].imports == 1
    assert (rows["unused"].import_lift, rows["unused"].imports) == (None, 0)

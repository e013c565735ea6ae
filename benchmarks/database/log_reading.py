"""What it costs to read a long log: pages of a trace and of a replay, what rests on a packet, lineage summaries."""

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping

import asyncpg

from apc_contracts.contract.contract import load_contract
from apc_log.queries import Position, get_packet_impact, get_packet_lineage_summary, replay_page, trace
from benchmarks.database.log_load import PROTOCOLS, RARE_PHASE
from benchmarks.support.figures import Figure, Figures

READ_BAR_MS = 200
PAGE = 100
TIMES = 20
_NOTES = {
    "log_trace_run": "page of 100 packets with their transitions, from the middle of a run",
    "log_trace_all": "the same, any packet",
    "log_trace_type": "the same, one packet in four",
    "log_trace_phase": "the same, one packet in 5,000",
    "log_trace_no_phase": "the same, a phase that does not occur",
    "log_replay_page": "100 entries from the middle of a run",
    "log_replay_task_page": "the same, of one task",
    "log_impact": "what rests on a packet: some eighty packets",
    "log_lineage_run": "summary of one run",
    "log_lineage_protocol": "summary of a protocol that is rarely transferred",
    "log_lineage_no_protocol": "the same of one that never was",
    "log_lineage_all": "summary of the whole log",
}
# The 101st packet of a run in the middle of the log: four, then sixteen, then sixty-four rest on it.
_MIDDLE = """
SELECT run_id, shard, seq, packet_id FROM apc_log.agent_packets
WHERE run_id = (SELECT run_id FROM apc_log.agent_packets
                WHERE shard = 0 AND seq >= (SELECT max(seq) / 2 FROM apc_log.agent_packets) ORDER BY seq LIMIT 1)
ORDER BY shard, seq OFFSET 100 LIMIT 1
"""

Readings = Mapping[str, float]
"""Name of a figure -> milliseconds, the 95th percentile."""


async def read_log(pool: asyncpg.Pool) -> Readings:
    """Return every query as often as its percentile needs, behind the same place in the middle of the log."""
    contract = load_contract()
    run_id, shard, seq, packet_id = (await pool.fetch(_MIDDLE))[0]
    after = Position(shard, seq)
    queries: Mapping[str, Callable[[], Awaitable[object]]] = {
        "log_trace_run": lambda: trace(pool, run_id=run_id, limit=PAGE, after=after),
        "log_trace_all": lambda: trace(pool, limit=PAGE, after=after),
        "log_trace_type": lambda: trace(pool, packet_type="EVAL", limit=PAGE, after=after),
        "log_trace_phase": lambda: trace(pool, run_phase=RARE_PHASE, limit=PAGE),
        "log_trace_no_phase": lambda: trace(pool, run_phase="ARBITRATION", limit=PAGE),
        "log_replay_page": lambda: replay_page(pool, run_id, limit=PAGE, after=after),
        "log_replay_task_page": lambda: replay_page(pool, run_id, "task-100", limit=PAGE),
        "log_impact": lambda: get_packet_impact(pool, packet_id),
        "log_lineage_run": lambda: get_packet_lineage_summary(pool, contract, run_id=run_id),
        "log_lineage_protocol": lambda: get_packet_lineage_summary(
            pool, contract, protocol_id=f"protocol-{PROTOCOLS - 1}"
        ),
        "log_lineage_no_protocol": lambda: get_packet_lineage_summary(pool, contract, protocol_id="protocol-none"),
        "log_lineage_all": lambda: get_packet_lineage_summary(pool, contract),
    }
    return {name: await p95_ms(query, TIMES) for name, query in queries.items()}


def add_readings(figures: Figures, first: Readings, last: Readings) -> None:
    """Add the figures behind all rows, each beside what the same took behind the first ones."""
    for name, value in last.items():
        note = f"{_NOTES[name]}; {first[name]:.0f} ms behind the first packets"
        figures.add(Figure(name, value, "ms p95", READ_BAR_MS, 1.0, is_time=True, note=note))


async def p95_ms(work: Callable[[], Awaitable[object]], times: int = 40) -> float:
    """Milliseconds that the work takes, the 95th percentile of so many times."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        await work()
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.quantiles(taken, n=20)[-1]

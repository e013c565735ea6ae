"""Measures what the bus costs, beside the raw limits of the same run; writes build/bench.json."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from apc_bus.errors import BusUnavailable
from apc_bus.telemetry import configure_logs
from apc_cli.system.running import run
from benchmarks.calls.context import measure_context
from benchmarks.calls.messages import measure_messages
from benchmarks.calls.observability import measure_observability
from benchmarks.calls.policy import measure_policy
from benchmarks.database.ageing import measure_ageing
from benchmarks.database.archive import measure_archive, measure_segments
from benchmarks.database.impact import measure_impact
from benchmarks.database.log import measure_log
from benchmarks.database.memory import measure_memory
from benchmarks.database.persisting import measure_persister
from benchmarks.relevance import measure_relevance
from benchmarks.services.growth import measure_growth
from benchmarks.services.sessions import measure_sessions
from benchmarks.services.shards import measure_shards, measure_spread
from benchmarks.services.starting import measure_start
from benchmarks.services.takeover import measure_takeover
from benchmarks.support.amounts import at_least
from benchmarks.support.figures import Figures
from benchmarks.support.machine import tell_machine
from benchmarks.support.processes import ROOT
from benchmarks.support.servers import start_servers
from benchmarks.support.system import start_system
from benchmarks.throughput.fan_out import measure_fan_out
from benchmarks.throughput.in_process import measure_in_process
from benchmarks.throughput.pipeline import measure_pipeline
from benchmarks.throughput.round_trip import measure_round_trip

PARTS = (
    *("policy", "messages", "observability", "context", "relevance", "pipeline", "round_trip", "fan_out", "persister"),
    *("log", "impact", "memory", "in_process", "start"),
)
LONG = ("sessions", "takeover", "shards", "spread", "archive", "ageing", "segments")
"""Parts that run only when they are named."""
ALONE = frozenset({"policy", "messages", "observability", "context", "relevance"})
"""Parts that need neither broker nor database."""
OVER_RABBIT = frozenset({"pipeline", "round_trip", "fan_out", "start", "sessions", "takeover"})


async def measure_only_growth(rows: int, figures: Figures) -> None:
    """Measure the growth; `rows` packets take about `rows` / 2,000 seconds."""
    async with start_servers() as servers, start_system(servers) as system:
        await measure_growth(servers, system, figures, rows)


async def measure(parts: Sequence[str], count: int, rows: int, opened: int, figures: Figures) -> None:
    """Measure the named parts; `count` packets a throughput, fewer where each costs more; `rows` in the log; `opened`
    sessions."""
    if "policy" in parts:
        measure_policy(figures)
    if "messages" in parts:
        measure_messages(figures)
    if "observability" in parts:
        measure_observability(figures)
    if "context" in parts:
        await measure_context(figures)
    if "relevance" in parts:
        measure_relevance(figures)
    if set(parts) <= ALONE:
        return
    async with start_servers() as servers:
        if OVER_RABBIT & set(parts):
            async with start_system(servers) as system:
                if "pipeline" in parts:
                    await measure_pipeline(servers, system, figures, count)
                if "round_trip" in parts:
                    await measure_round_trip(servers, system, figures, count // 20)
                if "fan_out" in parts:
                    await measure_fan_out(servers, system, figures, count // 10)
                if "start" in parts:
                    await measure_start(system, figures)
                if "sessions" in parts:
                    await measure_sessions(servers, system, figures, opened)
                if "takeover" in parts:
                    await measure_takeover(system, figures)
        if "shards" in parts:
            await measure_shards(servers, figures, count)
        if "spread" in parts:
            await measure_spread(servers, figures, count)
        if "persister" in parts:
            await measure_persister(servers, figures, count)
        if "log" in parts:
            await measure_log(servers, figures, rows)
        if "archive" in parts:
            await measure_archive(servers, figures, rows)
        if "ageing" in parts:
            await measure_ageing(servers, figures, rows)
        if "segments" in parts:
            await measure_segments(servers, figures)
        if "memory" in parts:
            await measure_memory(servers, figures)
        if "impact" in parts:
            await measure_impact(servers, figures, count)
    if "in_process" in parts:
        await measure_in_process(figures, count)


def main() -> int:
    """Return the command; 0 whatever the figures are: they are reported, not tuned."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--packets", type=at_least(1_000), default=10_000, help="packets of a throughput run")
    parser.add_argument(
        "--rows", type=at_least(20_000), default=50_000, help="packets in the log of part `log`, `archive`, `ageing`"
    )
    parser.add_argument("--open", type=at_least(1_000), default=10_000, help="open sessions of part `sessions`")
    parser.add_argument("--only", action="append", choices=PARTS + LONG, help="measure this part; may be repeated")
    parser.add_argument(
        "--growth",
        type=at_least(1_000),
        nargs="?",
        const=10_000,
        metavar="N",
        help="only this: what a packet costs over 100 sessions, 10 agents, and behind N packets in the log",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench.json")
    arguments = parser.parse_args()
    configure_logs("WARNING")
    figures = Figures()
    tell_machine("before")
    try:
        if arguments.growth is not None:
            run(measure_only_growth(arguments.growth, figures))
        else:
            run(measure(arguments.only or PARTS, arguments.packets, arguments.rows, arguments.open, figures))
    except BusUnavailable as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    tell_machine("after")
    figures.print()
    figures.write(arguments.out)
    print(f"{len(figures.missed)} figures below their bar; written to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

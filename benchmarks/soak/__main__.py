"""Kills, freezes and stops whatever runs, for some minutes; then nothing may be lost and nothing done twice."""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from apc_bus.errors import BusUnavailable
from apc_bus.telemetry import configure_logs
from apc_cli.system.running import run
from benchmarks.soak.accounting import Account, account_for
from benchmarks.soak.cast import SENDERS
from benchmarks.soak.lanes import Lanes, fresh_seed
from benchmarks.soak.memory import Growth, MemoryWatch
from benchmarks.soak.servers import mortal_servers
from benchmarks.soak.system import soaked_system
from benchmarks.support.processes import ROOT

SESSIONS_A_MINUTE = 3
REPORT = ROOT / "build" / "soak.json"


async def soak(minutes: float, seed: int, folder: Path) -> dict[str, Any]:
    """One run; the report. Raises AssertionError when the system does not come to rest."""
    sessions = max(3, round(minutes * SESSIONS_A_MINUTE))
    async with mortal_servers(folder) as servers, soaked_system(servers, folder, seed, sessions) as system:
        lanes, memory = Lanes(servers, system, seed), MemoryWatch(system.processes)
        watching = asyncio.create_task(memory.run())
        try:
            await lanes.run(60 * minutes)
        finally:
            watching.cancel()
        healed = time.monotonic()
        growth = memory.growth()
        starts = {process.name: process.starts for process in system.processes}
        await system.drain()
        drained = time.monotonic() - healed
        account = await account_for(system)
    done = {f"{lane}: {act}": count for (lane, act), count in sorted(lanes.done.items())}
    return {
        "seed": seed,
        "minutes": minutes,
        "faults": done,
        "starts": starts,
        "drained_seconds": round(drained, 1),
        **asdict(account),
        "memory": [asdict(one) | {"flat": one.is_flat} for one in growth],
        "problems": _problems(account, growth, done, starts),
    }


def _problems(account: Account, growth: Sequence[Growth], done: dict[str, int], starts: dict[str, int]) -> list[str]:
    found = list(account.violations)
    found += [f"memory of {one.kind} grew: {one.first:.0f} to {one.last:.0f} MB" for one in growth if not one.is_flat]
    if len({name.partition(":")[0] for name in done}) < 3:
        found.append(f"not exercised: faults of one lane only, or none: {done}; let it run longer")
    if max(starts[sender] for sender in SENDERS) == 1:
        found.append("not exercised: no sender was killed; let it run longer")
    return found


def _print(report: dict[str, Any]) -> None:
    print(f"seed {report['seed']}, {report['minutes']:g} minutes, drained in {report['drained_seconds']} s")
    print("faults: " + ", ".join(f"{count} x {name}" for name, count in report["faults"].items()))
    print("starts: " + ", ".join(f"{name} {count}" for name, count in report["starts"].items()))
    for name in ("verdicts", "states", "conflicts"):
        print(f"{name}: " + ", ".join(f"{key} {count}" for key, count in report[name].items()))
    print(f"packets confirmed {report['packets']}, emitted by workers {report['emitted']}, effects {report['effects']}")
    print(f"lost {report['lost']}, doubled effects {report['doubled']}")
    for one in report["memory"]:
        print(
            f"memory of {one['kind']}: {one['first']:.0f} MB in the first third, {one['last']:.0f} MB in the last "
            f"({one['slope']:+.1f} MB a minute)"
        )
    for problem in report["problems"]:
        print(f"PROBLEM: {problem}")


def main() -> int:
    """Exit code 1 when something was lost, doubled, or did not hold."""
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults are made (default 10)")
    parser.add_argument("--seed", type=int, default=None, help="of the faults and of the load; default a random one")
    arguments = parser.parse_args()
    seed = fresh_seed() if arguments.seed is None else arguments.seed
    configure_logs("ERROR")
    folder = Path(tempfile.mkdtemp(prefix="apc-soak-run-"))
    again = f"again: make soak MINUTES={arguments.minutes:g} SEED={seed}; what the processes said: {folder}"
    print(f"soak of {arguments.minutes:g} minutes, seed {seed}", flush=True)
    try:
        report = run(soak(arguments.minutes, seed, folder))
    except BusUnavailable as error:
        print(error, file=sys.stderr)
        return 2
    except BaseException:
        print(again, file=sys.stderr)
        raise
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
    _print(report)
    if report["problems"]:
        print(again, file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

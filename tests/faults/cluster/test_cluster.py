"""A cluster as a user runs it, under kills, freezes, a partition and an alarm: it loses and doubles nothing.

`make test-cluster` runs it. FAULTS=name,name chooses faults (tests/faults/cluster/faults.py), RATE=n the sessions per
second. It needs Linux: the processes live in a private network, whose packets are filtered for the partition.
"""

import asyncio
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tests.faults.cluster.accounting import account_for
from tests.faults.cluster.facts import read_facts
from tests.faults.cluster.faults import Fault, chosen
from tests.faults.cluster.processes import ROOT
from tests.faults.cluster.report import REPORT, Outcome, Struck, lines_of, write
from tests.faults.cluster.servers import running_servers
from tests.faults.cluster.system import GATE, HOST, WORKER, WRITER, ClusterSystem, cluster_system

RATE = 6.0
WARM_UP_SECONDS = 10.0
DRAIN_SECONDS = 120.0
"""For the sessions that are open when the driver asks for no more."""


@pytest.fixture
def own_network() -> None:
    """The loopback network of this process's own namespace, as `make test-cluster` starts it."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


@pytest.fixture
def folder() -> Path:
    """The logs, notes and journal of a run: they explain what it finds, and stay until the next one."""
    path = ROOT / "build/cluster"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


@pytest.mark.faults
@pytest.mark.timeout(1500)
async def test_a_cluster_loses_and_doubles_nothing(own_network: None, folder: Path) -> None:
    faults = chosen(os.environ.get("APC_CLUSTER_FAULTS"))
    rate = float(os.environ.get("APC_CLUSTER_RATE") or RATE)
    async with running_servers() as servers, cluster_system(servers, folder) as system:
        outcome = await _run(system, faults, rate)
        write(outcome)
        print("\n" + "\n".join(lines_of(outcome)) + f"\n{REPORT}", flush=True)
        assert not outcome.violations, "\n".join(outcome.violations)


async def _run(system: ClusterSystem, faults: list[Fault], rate: float) -> Outcome:
    began = time.time()
    driver = await system.add_driver(rate)
    await asyncio.sleep(WARM_UP_SECONDS)
    struck = [await _strike(system, fault) for fault in faults]
    driven_until = time.time()
    codes = {driver.name: await driver.stop(DRAIN_SECONDS)}
    verified = await system.apc("log", "verify", settings=system.operator_settings, may_fail=True)
    facts = await read_facts(system.admin, system.folder)
    for kind in (WORKER, HOST, GATE, WRITER):
        processes = system.of(kind)
        ended = await asyncio.gather(*(process.stop() for process in processes))
        codes |= dict(zip((process.name for process in processes), ended, strict=True))
    return Outcome(facts, account_for(facts), struck, began, driven_until, system.ends, codes, verified)


async def _strike(system: ClusterSystem, fault: Fault) -> Struck:
    """Put a fault in and drive on for a while; one that finds nothing to hit is told as such."""
    began = time.time()
    try:
        hit, reason = await fault.act(system), ""
    except Exception as error:
        hit, reason = None, f"{type(error).__name__}: {error}"[:500]
    print(f"{time.strftime('%H:%M:%S')} {fault.title}: {hit or reason}", flush=True)
    await asyncio.sleep(fault.settle_seconds)  # under load
    return Struck(fault, began, hit, reason)

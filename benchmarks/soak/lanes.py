"""Three lanes of faults at the same time: processes, broker nodes, the database. Each is mended before its next one."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Iterator

from tests.support.servers.private_cluster import NODES

from benchmarks.soak.faults import Act, Fault, faults
from benchmarks.soak.processes import KeptProcess
from benchmarks.soak.servers import MortalServers
from benchmarks.soak.system import SoakedSystem

PROCESSES, BROKER, DATABASE = "processes", "broker", "database"
_OF_PROCESSES = {Act.KILL: 0.6, Act.FREEZE: 0.25, Act.TERM: 0.15}
_OF_NODES = {Act.KILL: 0.6, Act.FREEZE: 0.3, Act.KILL_ALL: 0.1}
_OF_DATABASE = {Act.KILL: 0.7, Act.FREEZE: 0.3}


class Lanes:
    """Carries out the faults of a seed until told to stop. `done` counts (lane, act)."""

    def __init__(self, servers: MortalServers, system: SoakedSystem, seed: int) -> None:
        self.done: Counter[tuple[str, str]] = Counter()
        self._servers = servers
        self._processes = {process.name: process for process in system.processes}
        self._seed = seed
        self._stop = asyncio.Event()

    async def run(self, seconds: float) -> None:
        """Run for so long; returns when the last fault is mended."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._lane(PROCESSES, self._of_processes()))
            tasks.create_task(self._lane(BROKER, self._of_nodes()))
            tasks.create_task(self._lane(DATABASE, self._of_database()))
            await asyncio.sleep(seconds)
            self._stop.set()

    def _of_processes(self) -> Iterator[Fault]:
        return faults(self._seed, PROCESSES, sorted(self._processes), _OF_PROCESSES, 5.0, (1.0, 15.0))

    def _of_nodes(self) -> Iterator[Fault]:
        return faults(self._seed, BROKER, [str(index) for index in range(NODES)], _OF_NODES, 20.0, (1.0, 15.0))

    def _of_database(self) -> Iterator[Fault]:
        return faults(self._seed, DATABASE, [DATABASE], _OF_DATABASE, 40.0, (1.0, 10.0))

    async def _lane(self, lane: str, planned: Iterator[Fault]) -> None:
        for fault in planned:
            if await self._is_over_in(fault.pause):
                return
            await self._do(lane, fault)
            self.done[(lane, fault.act)] += 1

    async def _do(self, lane: str, fault: Fault) -> None:
        match lane, fault.act:
            case "processes", _:
                await self._to_process(self._processes[fault.target], fault)
            case "broker", Act.FREEZE:
                await self._servers.freeze_node(int(fault.target), fault.hold)
            case "broker", Act.KILL_ALL:
                await self._servers.kill_nodes(list(range(NODES)), fault.hold)
            case "broker", _:
                await self._servers.kill_nodes([int(fault.target)], fault.hold)
            case _, Act.FREEZE:
                await self._servers.freeze_database(fault.hold)
            case _:
                await self._servers.kill_database(fault.hold)

    async def _to_process(self, process: KeptProcess, fault: Fault) -> None:
        if fault.act is not Act.FREEZE:
            process.signal(signal.SIGKILL if fault.act is Act.KILL else signal.SIGTERM)
            return
        process.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.hold)
        finally:
            process.signal(signal.SIGCONT)

    async def _is_over_in(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return False
        return True


def fresh_seed() -> int:
    """Return a seed to be printed, so that the run can be repeated."""
    return random.SystemRandom().randrange(1_000_000)

"""Where the CPU goes during a run: each process of it, the sender and the two servers."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from benchmarks.support.processes import consumption_of
from benchmarks.support.servers import Servers


@dataclass(frozen=True, slots=True)
class Run:
    """Packets per second, and the CPU seconds that 1,000 packets cost each process."""

    rate: float
    cpu: dict[str, float]


@dataclass(frozen=True, slots=True)
class Meter:
    """CPU seconds by name when the run began."""

    servers: Servers
    processes: Mapping[str, int]
    before: dict[str, float]

    @classmethod
    async def start(cls, servers: Servers, processes: Mapping[str, int]) -> Self:
        """Begin; `processes` are ids by name, to which the sender (this process) is added."""
        everyone = {**processes, "sender": os.getpid()}
        return cls(servers, everyone, await _used(servers, everyone))

    async def read(self, packets: int) -> dict[str, float]:
        """CPU seconds per 1,000 packets since the start, by name."""
        used = await _used(self.servers, self.processes)
        return {name: (used[name] - self.before[name]) / packets * 1000 for name in used}


async def _used(servers: Servers, processes: Mapping[str, int]) -> dict[str, float]:
    own = {name: consumption_of(pid).cpu_seconds for name, pid in processes.items()}
    return own | await servers.cpu_seconds()

"""Resident memory of the services over the soak: flat means that its last third is like its first."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.soak.processes import KeptProcess

SAMPLE_SECONDS = 2.0
GROWN_UP_SECONDS = 40.0
"""A process that was just started is still loading itself, on a busy machine for long."""
ALLOWED_RATIO = 1.2
ALLOWED_MB = 10.0


@dataclass(frozen=True, slots=True)
class Growth:
    """Medians in MB of all processes of a kind; `slope` in MB a minute between the middles of the two thirds."""

    kind: str
    first: float
    last: float
    slope: float

    @property
    def is_flat(self) -> bool:
        """Within the bound: a fifth and 10 MB more."""
        return self.last <= ALLOWED_RATIO * self.first + ALLOWED_MB


class MemoryWatch:
    """Samples until cancelled."""

    def __init__(self, processes: Sequence[KeptProcess]) -> None:
        self._processes = processes
        self._began = time.monotonic()
        self._samples: dict[str, list[tuple[float, float]]] = {}

    async def run(self) -> None:
        """Sample all processes that run and are grown up."""
        while True:
            now = time.monotonic()
            for process in self._processes:
                resident = process.resident_bytes
                if resident is not None and now - process.started_at >= GROWN_UP_SECONDS:
                    kind = process.name.rsplit("-", 1)[0]
                    self._samples.setdefault(kind, []).append((now - self._began, resident / 1e6))
            await asyncio.sleep(SAMPLE_SECONDS)

    def growth(self) -> list[Growth]:
        """Of each kind of process with samples in both thirds."""
        seconds = time.monotonic() - self._began
        found = []
        for kind, samples in sorted(self._samples.items()):
            first = [mb for at, mb in samples if at <= seconds / 3]
            last = [mb for at, mb in samples if at >= 2 * seconds / 3]
            if first and last:
                low, high = statistics.median(first), statistics.median(last)
                found.append(Growth(kind, low, high, (high - low) / (seconds * 2 / 3 / 60)))
        return found

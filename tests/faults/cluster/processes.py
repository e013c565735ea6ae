"""Processes of the product in the cluster run. Nobody restarts one but the run itself, after it has killed it."""

import asyncio
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[3]
APC = Path(sys.executable).parent / "apc"
STOP_SECONDS = 60.0
SCRAPE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class End:
    """A process ended and nobody had asked for it."""

    process: str
    code: int
    at: float
    last_words: str


class ClusterProcess:
    """A service, a worker or the driver: started as a user would, killed and frozen by the run.

    Args:
        name: of its log file in `folder`.
        command: what is run.
        settings: the only APC_ settings that it gets.

    Attributes:
        ends: how it ended without being told to; must stay empty.
    """

    def __init__(self, name: str, command: tuple[str, ...], folder: Path, settings: Mapping[str, str]) -> None:
        self.name = name
        self.ends: list[End] = []
        self._command = command
        self._log = folder / f"{name}.log"
        self._port = settings.get("APC_HEALTH_PORT")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("APC_", "PYTEST"))}
        self._environment = inherited | {"PYTHONPATH": str(ROOT)} | dict(settings)
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._is_told = False

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it, unless it runs."""
        if self.is_running:
            return
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, cwd=self._log.parent, env=self._environment, stdin=asyncio.subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self._is_told = False
        self._watching = asyncio.create_task(self._watch(self._process))

    async def kill(self) -> None:
        """Kill it with SIGKILL, if it runs."""
        if self.is_running:
            self._is_told = True
            self.signal(signal.SIGKILL)
            await self._ended()

    async def stop(self, seconds: float = STOP_SECONDS) -> int | None:
        """Ask it to stop (SIGTERM) and return its exit code; None when it had to be killed, or did not run."""
        if not self.is_running:
            return None
        self._is_told = True
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                return await self._ended()
        except TimeoutError:
            await self.kill()
            return None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def metric(self, name: str) -> float | None:
        """Return the sum of a metric over its labels; None when its page does not answer."""
        return await asyncio.to_thread(self._scrape, name)

    async def close(self) -> None:
        """End it, whatever it does."""
        if self.is_running:
            self.signal(signal.SIGCONT)
        await self.kill()

    def _scrape(self, name: str) -> float | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=SCRAPE_SECONDS) as page:
                text = page.read().decode()
        except OSError:
            return None
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        return sum(one.value for one in samples if one.name == name)

    async def _ended(self) -> int:
        assert self._process is not None and self._watching is not None
        await asyncio.shield(self._watching)
        assert self._process.returncode is not None
        return self._process.returncode

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if not self._is_told:
            words = self._log.read_text(errors="replace")[-3000:]
            self.ends.append(End(self.name, code, time.time(), words))
            print(f"{self.name} has ended by itself with {code}", flush=True)

"""Processes that are killed, frozen and told to leave, and started again by the one who keeps them."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.support.processes import ROOT

RESTART_SECONDS = 0.5
STOP_SECONDS = 90.0
"""A worker drains for 15 s, and a broker that has just healed may be slow."""


class KeptProcess:
    """A Python process that is started again whenever it ends.

    Args:
        name: of its log file in `folder`.
        arguments: after `python -m`.
        environment: the only APC_ settings that it gets.
    """

    def __init__(self, name: str, arguments: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.starts = 0
        self.started_at = 0.0
        """Of the monotonic clock."""
        self._arguments = arguments
        self._log = folder / f"{name}.log"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("APC_")}
        self._environment = inherited | dict(environment)
        self._process: asyncio.subprocess.Process | None = None
        self._is_leaving = False
        self._keeping = asyncio.create_task(self._keep(), name=name)

    @property
    def resident_bytes(self) -> int | None:
        """Its memory; None while it does not run."""
        with suppress(psutil.NoSuchProcess):
            if self._process is not None and self._process.returncode is None:
                return int(psutil.Process(self._process.pid).memory_info().rss)
        return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        with suppress(ProcessLookupError):
            if self._process is not None and self._process.returncode is None:
                self._process.send_signal(number)

    async def stop(self) -> int:
        """SIGTERM, and no restart; returns its exit code. Kills what does not leave: -9."""
        self._is_leaving = True
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await asyncio.shield(self._keeping)
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self._keeping
        return -signal.SIGKILL if self._process is None else self._process.returncode or 0

    async def end(self) -> None:
        """End it, whatever it does."""
        self._is_leaving = True
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        await asyncio.wait([self._keeping])

    async def _keep(self) -> None:
        while not self._is_leaving:
            with self._log.open("ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", *self._arguments,
                    cwd=ROOT, env=self._environment, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                )  # fmt: skip
            self.starts, self.started_at = self.starts + 1, time.monotonic()
            await self._process.wait()
            if not self._is_leaving:
                await asyncio.sleep(RESTART_SECONDS)

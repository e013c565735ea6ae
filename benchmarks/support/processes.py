"""Processes of a benchmark: started, awaited until they say that they serve, measured, ended by their id."""

import asyncio
import os
import re
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

START_SECONDS = 60.0
STOP_SECONDS = 30.0
WORDS_KEPT = 40
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Consumption:
    """What a process has used so far: CPU seconds of user and system, resident memory in MB."""

    cpu_seconds: float
    memory_mb: float


@dataclass(slots=True)
class Service:
    """A running process. `lines` ends with what it said last."""

    name: str
    process: asyncio.subprocess.Process
    began: float
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=WORDS_KEPT))
    _waiting: list[tuple[re.Pattern[str], asyncio.Future[str]]] = field(default_factory=list)

    async def said(self, pattern: str) -> str:
        """Return the first line from now on, or among the last ones, that matches.

        Raises TimeoutError, RuntimeError.
        """
        expression = re.compile(pattern)
        for line in self.lines:
            if expression.search(line):
                return line
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((expression, found))
        return await asyncio.wait_for(found, START_SECONDS)

    async def ended(self) -> None:
        """Wait until it has ended by itself. Raises TimeoutError."""
        await asyncio.wait_for(self.process.wait(), STOP_SECONDS)

    def consumption(self) -> Consumption:
        """Return what it has used until now."""
        return consumption_of(self.process.pid)

    async def read(self) -> None:
        """Read what it says until it ends."""
        assert self.process.stdout is not None
        while written := await self.process.stdout.readline():
            line = written.decode(errors="replace").rstrip()
            self.lines.append(line)
            for expression, found in self._waiting:
                if not found.done() and expression.search(line):
                    found.set_result(line)
        last_words = "\n".join(self.lines)
        for _, found in self._waiting:
            if not found.done():
                found.set_exception(RuntimeError(f"{self.name} ended: {last_words}"))


@asynccontextmanager
async def running(name: str, *arguments: str, environment: Mapping[str, str]) -> AsyncIterator[Service]:
    """Start a Python process in the repository's root; leaving the context drains it with SIGTERM.

    Args:
        arguments: after `python`, such as `-m apc_cli serve persister`.
        environment: the only APC_ settings that it gets.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("APC_")}
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=ROOT,
        env=inherited | {"PYTHONUNBUFFERED": "1"} | dict(environment),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    service = Service(name, process, began)
    reading = asyncio.create_task(service.read())
    try:
        yield service
    finally:
        await _end(process)
        await reading


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


def consumption_of(pid: int) -> Consumption:
    """Return what a process has used until now."""
    process = psutil.Process(pid)
    times = process.cpu_times()
    return Consumption(times.user + times.system, process.memory_info().rss / 1e6)

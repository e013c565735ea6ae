"""Keep a set of `apc` processes alive: restart what dies, with back-off, and drain all of them at the end."""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import structlog

from apc_bus.backoff import Backoff
from apc_bus.folders import make_private_folder
from apc_contracts.text import one_line

log = structlog.get_logger(__name__)

FIRST_PAUSE = timedelta(milliseconds=200)
LONGEST_PAUSE = timedelta(seconds=10)
HEALTHY_AFTER = timedelta(seconds=20)
"""A process that lived this long restarts its back-off."""
SAID = "apc: "
"""The beginning of the last line of a command that failed."""
LONGEST_WORDS = 65_536
DRAIN_LIMIT = timedelta(seconds=25)
"""From SIGTERM to SIGKILL; longer than a worker waits for its handlers."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process: a name for the logs, the arguments of `apc`, and additions to its environment.

    Processes of the highest `stage` are drained first, all of one stage at once.
    """

    name: str
    arguments: tuple[str, ...]
    stage: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Keeper:
    stage: int
    task: asyncio.Task[None]
    stop: asyncio.Event


class Supervisor:
    """Owns the processes; `async with` starts and drains them. They end by themselves when this process is killed.

    They are drained by stage, so that the log writer, in the lowest one, writes what the others leave behind.
    """

    def __init__(self, specs: Sequence[ProcessSpec], logs: Path | None = None, first_port: int | None = None) -> None:
        """Prepare the processes.

        Args:
            logs: a folder for the output of each process; None = it goes to ours.
            first_port: the port of the first process's health pages, the next one for the second; None = no pages.
        """
        self._first_port = first_port
        self._specs = specs
        self._logs = logs
        self._keepers: list[_Keeper] = []
        self._deaths: Counter[str] = Counter()
        self._lifeline = (-1, -1)
        """A pipe that nobody writes to: its readers see its end when this process dies, however it dies."""

    async def __aenter__(self) -> "Supervisor":
        self._lifeline = os.pipe()
        for spec in self._specs:
            self.add(spec)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.drain()
        finally:
            for end in self._lifeline:
                os.close(end)

    async def drain(self, down_to: int = 0) -> None:
        """Stop all processes, or those of this stage and above, the highest stage first; idempotent."""
        for stage in sorted({keeper.stage for keeper in self._keepers if keeper.stage >= down_to}, reverse=True):
            leaving = [keeper for keeper in self._keepers if keeper.stage == stage]
            for keeper in leaving:
                keeper.stop.set()
            await asyncio.gather(*(keeper.task for keeper in leaving))

    def add(self, spec: ProcessSpec) -> None:
        """Start one more process and keep it alive."""
        stop = asyncio.Event()
        if self._first_port is not None:
            # Two processes cannot share a port: ports are assigned in the order of addition, from APC_HEALTH_PORT on.
            port = {"APC_HEALTH_PORT": str(self._first_port + len(self._keepers))}
            spec = replace(spec, environment=port | dict(spec.environment))
        task = asyncio.create_task(self._keep(spec, stop), name=spec.name)
        self._keepers.append(_Keeper(spec.stage, task, stop))

    async def _keep(self, spec: ProcessSpec, stop: asyncio.Event) -> None:
        backoff = Backoff(FIRST_PAUSE.total_seconds(), LONGEST_PAUSE.total_seconds(), stop)
        while not stop.is_set():
            began = time.monotonic()
            try:
                process = await self._start(spec)
            except OSError as error:  # the machine has no memory, process or file left for it now
                log.error("process_not_started", process=spec.name, reason=str(error), next_attempt_in_s=backoff.pause)
                await backoff.wait()
                continue
            if await _exits_before(process, stop):
                lived = timedelta(seconds=time.monotonic() - began)
                self._deaths[spec.name] += 1
                if lived > HEALTHY_AFTER:
                    backoff.reset()
                log.error(
                    "process_died",
                    process=spec.name,
                    code=process.returncode,
                    reason=self.last_words(spec.name),
                    restart_in_s=backoff.pause,
                )
                await backoff.wait()
            else:
                await _drain(spec.name, process)

    async def _start(self, spec: ProcessSpec) -> asyncio.subprocess.Process:
        output = self._open_log(spec.name)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "apc_console",
                *spec.arguments,
                env=os.environ | {"APC_SUPERVISED": "true"} | dict(spec.environment),
                stdin=self._lifeline[0],
                stdout=output,
                stderr=output,
                # Ctrl-C at the terminal reaches only us: we drain the others in order.
                start_new_session=True,
            )
        finally:
            if output is not None:
                os.close(output)
        log.info("process_started", process=spec.name, pid=process.pid)
        return process

    @property
    def keepers(self) -> list[asyncio.Task[None]]:
        """What keeps the processes running, one task each; a task ends when its process was drained."""
        return [keeper.task for keeper in self._keepers]

    def deaths(self, name: str) -> int:
        """Return how often a process has ended without being told to."""
        return self._deaths[name]

    def last_words(self, name: str) -> str:
        """Return why a process ended, in its own words, or where to find them."""
        if self._logs is None:
            return "its output above says why"
        file = self._log_file(self._logs, name)
        try:
            with file.open("rb") as opened:
                opened.seek(max(0, file.stat().st_size - LONGEST_WORDS))
                lines = opened.read().decode(errors="replace").splitlines()
        except OSError:
            lines = []
        said = next((line for line in reversed(lines) if line.startswith(SAID)), None)
        return f"see {file}" if said is None else one_line(said.removeprefix(SAID))

    @staticmethod
    def _log_file(folder: Path, name: str) -> Path:
        return folder / f"{name}.log"

    def _open_log(self, name: str) -> int | None:
        if self._logs is None:
            return None
        make_private_folder(self._logs)
        return os.open(self._log_file(self._logs, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


async def _exits_before(process: asyncio.subprocess.Process, stop: asyncio.Event) -> bool:
    exit_, stopped = asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())
    await asyncio.wait({exit_, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for task in (exit_, stopped):
        task.cancel()
    return process.returncode is not None


async def _drain(name: str, process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), DRAIN_LIMIT.total_seconds())
    except TimeoutError:
        log.warning("process_killed", process=name, after_s=DRAIN_LIMIT.total_seconds())
        process.kill()
        await process.wait()
    log.info("process_stopped", process=name, code=process.returncode)

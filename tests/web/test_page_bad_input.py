"""The page over packets that want to harm it, and over a server, a database and a browser that come and go."""

import asyncio
import socket
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.log.tampering import disable_guards
from tests.support.traffic.packets import make_packet, make_start
from tests.support.web.browser import browse, require_page
from tests.support.web.outage import allow_connections
from tests.web.conftest import TOKEN, WebBench

from apc_contracts import IdeaPayload, SignalPayload
from apc_contracts.limits import DEFAULT_LIMITS
from apc_contracts.vocabulary import RunPhase, Signal
from apc_web.app import make_app
from apc_web.guard import AccessGuard
from apc_web.http import make_server
from apc_web.verification_job import LogVerifier

WORD = "w" * (DEFAULT_LIMITS.size_bytes - 8_192)
"""One word as long as a packet can be: 256 KiB with its envelope; the gate refuses 1 MB."""
HOSTILE = f"<script>alert(1)</script> \u202egnp.exe \x1b[2J <img src=x onerror=alert(2)> {WORD}"
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

    async def show_the_key() -> None:
        hidden.undo()

    async def send_a_packet() -> None:
        async with house.persister(), house.gate():
            await house.publish(make_packet("red-1", SignalPayload(signal=Signal.QUERY), parent=opening))
            await house.quiet()

    acts = {
        "send a packet": send_a_packet,
        "change the row": change_the_row,
        "hide the key": hide_the_key,
        "show the key": show_the_key,
        "stop the server": site.stop,
        "start the server": site.start,
        "stop the database": lambda: allow_connections(house.pool, postgres_url, allowed=False),
        "start the database": lambda: allow_connections(house.pool, postgres_url, allowed=True),
    }
    with monkeypatch.context() as hidden:
        await browse("bad-input.mjs", given, acts)

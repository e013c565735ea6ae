"""The API over a session that a real gate judged and a real log writer stored."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx2 as httpx
import pytest
from tests.orchestrator.conftest import House, house, idea
from tests.support.traffic.packets import make_packet, make_start

from apc_bus.settings import PersisterSettings
from apc_contracts import IdeaPayload, Packet, SignalPayload, load_contract
from apc_contracts.vocabulary import RunPhase, Signal
from apc_persister.evidence.checkpoint import load_signer
from apc_web.app import make_app
from apc_web.guard import AccessGuard
from apc_web.live import Feed
from apc_web.pool import open_reader, open_state_reader
from apc_web.route_services import Services

__all__ = ["house", "idea"]
TOKEN = "token-of-the-tests"
SERVER = "http://127.0.0.1:8083"


@dataclass
class WebBench:
    """A house, the web server's services over its log, and a client of the API with the token."""

    house: House
    services: Services
    client: httpx.AsyncClient

    async def get(self, path: str, status: int = 200, **parameters: Any) -> Any:
        """Return the JSON of a route, after comparing its status."""
        given = {name: value for name, value in parameters.items() if value is not None}
        response = await self.client.get(f"/api/v1{path}", params=given)
        assert response.status_code == status, response.text
        return response.json()


@asynccontextmanager
async def open_bench(house: House, url: str) -> AsyncIterator[WebBench]:
    """Serve the API in this process, over the reader's pool."""
    pool = await open_reader(url, timedelta(seconds=10))
    state = await open_state_reader(url, timedelta(seconds=10))
    contract = load_contract()
    services = Services(
        pool=pool,
        state=state,
        contract=contract,
        key_of=load_signer(PersisterSettings()).public_key,
        feed=Feed(pool, contract),
        is_embedded=False,
        why_no_acts="the tests act elsewhere",
    )
    transport = httpx.ASGITransport(AccessGuard(make_app(services), TOKEN))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url=SERVER, headers=headers) as client:
        yield WebBench(house, services, client)
    state.terminate()
    pool.terminate()


@pytest.fixture
async def bench(house: House, postgres_url: str) -> AsyncIterator[WebBench]:
    """The API over an empty log."""
    async with open_bench(house, postgres_url) as opened:
        yield opened


Say = Callable[..., Packet]


@pytest.fixture
async def told(bench: WebBench, idea: IdeaPayload) -> AsyncIterator[WebBench]:
    """A session in DISCOVERY with a dead letter and a refused packet; gate and log writer at work."""
    opening = make_start(budgets={"packets": 50})
    async with bench.house.persister(), bench.house.gate():
        await bench.house.discover(opening)
        sent = make_packet("red-1", idea, ("sentinel",), phase=RunPhase.DISCOVERY, parent=opening)
        await bench.house.publish(sent)
        await bench.house.publish(make_packet("red-1", SignalPayload(signal=Signal.VETO), parent=opening))
        await bench.house.publish(
            make_packet("blue-1", idea, ("sentinel",), phase=RunPhase.PROMOTION, parent=opening, keys=("other",))
        )
        await bench.house.quiet()
        await bench.house.followed()
        yield bench

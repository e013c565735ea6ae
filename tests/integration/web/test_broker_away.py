"""The broker goes away and comes back while pages are open: reading goes on, and acts say what became of them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import httpx2 as httpx
import pytest
from pydantic import SecretStr
from tests.integration.conftest import House
from tests.support.servers import Proxy
from tests.support.traffic import SESSION

from apc_bus.settings import BusSettings
from apc_cli.commands.ui import OperatorActs, QueueProbe
from apc_contracts import load_contract
from apc_web import queue_looks
from apc_web.app import make_app
from apc_web.live import Feed
from apc_web.pool import open_reader
from apc_web.queue_looks import CachedProbe
from apc_web.route_services import Services

PAUSES = "SELECT count(*) FROM apc_log.packets WHERE packet #>> '{payload,signal}' = 'PAUSE'"


@pytest.fixture
async def cable(house: House) -> AsyncIterator[Proxy]:
    """What is between the web server and the broker; gate and log writer have their own way."""
    async with Proxy.open(house.settings.amqp_url.get_secret_value()) as proxy:
        yield proxy


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_the_broker_goes_away_and_comes_back(
    house: House, cable: Proxy, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_looks, "KEPT_SECONDS", 0.0)
    settings, contract = BusSettings(amqp_url=SecretStr(cable.url)), load_contract()
    async with AsyncExitStack() as stack:
        pool = await open_reader(postgres_url, timedelta(seconds=10))
        stack.callback(pool.terminate)
        services = Services(
            pool, contract, lambda _: None, pool, Feed(pool, contract), is_embedded=False,
            acts=OperatorActs(pool, settings), probe=CachedProbe(QueueProbe(settings)),
        )  # fmt: skip
        transport = httpx.ASGITransport(make_app(services))
        client = await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1", timeout=60)
        )
        await stack.enter_async_context(house.persister())
        await stack.enter_async_context(house.gate())
        await house.open_session()

        async def read(path: str) -> Any:
            answer = await client.get(path)
            assert answer.status_code == 200, answer.text
            return answer.json()

        assert {one["state"] for one in (await read("/system"))["services"]} == {"running"}
        known = await read("/agents?queues=true")
        assert known["is_complete"] and {one["waiting"] is None for one in known["items"]} == {False}, known
        cable.freeze()
        cable.cut()
        refused = await client.post(f"/sessions/{SESSION}/pause", json={"reason": "lunch"})
        assert refused.status_code == 503 and refused.json()["code"].endswith("AWAY"), refused.text
        found = await read("/system")
        assert not found["is_complete"] and "broker" in found["words"]
        assert {one["state"] for one in found["services"]} == {"unknown"} and not found["alerts"]
        unknown = await read("/agents?queues=true")
        assert not unknown["is_complete"] and "broker" in unknown["words"]
        assert {one["waiting"] for one in unknown["items"]} == {None}
        assert (await read(f"/sessions/{SESSION}"))["state"] == "SESSION_OPEN", "the log is read as before"
        assert (await read("/about"))["can_act"], "acts stay on the page: each says what became of it"
        cable.thaw()
        done = await client.post(f"/sessions/{SESSION}/pause", json={"reason": "lunch"})
        assert done.status_code == 200, done.text
        assert (await read("/system"))["is_complete"]
    assert await house.pool.fetchval(PAUSES) == 1

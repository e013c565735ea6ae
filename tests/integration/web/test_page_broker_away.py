"""The broker goes away and comes back while pages are open in a real browser."""

from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from pydantic import SecretStr
from tests.integration.conftest import House
from tests.integration.web.test_broker_away import cable
from tests.support.servers import Proxy
from tests.support.web.browser import browse, require_page, served
from tests.web.conftest import TOKEN

from apc_bus.settings import BusSettings
from apc_cli.commands.ui import QueueProbe
from apc_contracts import load_contract
from apc_web.app import make_app
from apc_web.guard import AccessGuard
from apc_web.live import Feed
from apc_web.pool import open_reader
from apc_web.queue_looks import CachedProbe
from apc_web.route_services import Services

__all__ = ["cable"]


@pytest.mark.page
@pytest.mark.timeout(300)
async def test_open_pages_tell_that_the_broker_is_away(house: House, cable: Proxy, postgres_url: str) -> None:
    require_page()
    contract = load_contract()
    probe = CachedProbe(QueueProbe(BusSettings(amqp_url=SecretStr(cable.url))))

    async def cut() -> None:
        cable.freeze()
        cable.cut()

    async def mend() -> None:
        cable.thaw()

    async with AsyncExitStack() as stack:
        pool = await open_reader(postgres_url, timedelta(seconds=10))
        stack.callback(pool.terminate)
        services = Services(pool, contract, lambda _: None, pool, Feed(pool, contract), is_embedded=False, probe=probe)
        await stack.enter_async_context(house.persister())
        await stack.enter_async_context(house.gate())
        await house.open_session()
        url = await stack.enter_async_context(served(AccessGuard(make_app(services), TOKEN)))
        await browse("broker.mjs", {"url": url, "token": TOKEN}, {"cut the broker": cut, "mend the broker": mend})

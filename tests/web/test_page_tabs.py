"""The tabs of one browser share one stream of the server: HTTP/1.1 allows six connections a host."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from tests.support.traffic.packets import make_packet
from tests.support.web.browser import browse, require_page, served
from tests.web.conftest import TOKEN, WebBench

from apc_client.sending import until
from apc_contracts import SignalPayload
from apc_contracts.vocabulary import Signal
from apc_web.app import make_app
from apc_web.guard import AccessGuard


@pytest.mark.page
@pytest.mark.timeout(300)
async def test_tabs_share_a_stream_and_each_follows_what_it_shows(told: WebBench) -> None:
    require_page()
    feed = told.services.feed

    def streams(count: int) -> Callable[[], Awaitable[object]]:
        async def are_open() -> bool:
            return feed.followers == count

        return lambda: until(are_open, timedelta(seconds=60))

    acts = {
        "one stream is open": streams(1),
        "no stream is open": streams(0),
        "two streams are open": streams(2),
        "send a packet": lambda: told.house.publish(make_packet("red-1", SignalPayload(signal=Signal.QUERY))),
    }
    [session] = (await told.get("/sessions", run_id="run-1"))["items"]
    async with served(AccessGuard(make_app(told.services), TOKEN)) as url:
        await browse("tabs.mjs", {"url": url, "token": TOKEN, "run": session["run_id"]}, acts)

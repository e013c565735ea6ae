"""One person takes what all share: the streams of a server, and the looks at the broker."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.types import Message
from tests.security.web.test_accounts import Door, opened
from tests.web.conftest import WebBench

from apc_bus.port import QueueDepth
from apc_web import live, queue_looks
from apc_web.guard import AccessGuard
from apc_web.queue_looks import CachedProbe, Depths

STREAMS = 200


@asynccontextmanager
async def _streams(door: Door, headers: dict[str, str], number: int) -> AsyncIterator[list[int]]:
    """Open streams at the same moment, and keep them; yield the statuses of their answers."""
    begun: list[asyncio.Future[int]] = [asyncio.get_running_loop().create_future() for _ in range(number)]
    app = AccessGuard(door.app, door.accounts, door.clock)
    scope = {
        "type": "http", "method": "GET", "path": "/api/v1/stream", "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip

    async def one(status: asyncio.Future[int]) -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                status.set_result(message["status"])

        asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> Message:
            return next(asked, None) or await asyncio.get_running_loop().create_future()

        await app(dict(scope), receive, send)

    tasks = [asyncio.create_task(one(status)) for status in begun]
    try:
        yield await asyncio.gather(*begun)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_account_with_many_streams_leaves_some_for_others(
    told: WebBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(told, tmp_path) as door:
        vera, olga = await door.cookie("vera"), await door.cookie("olga")
        with monkeypatch.context() as unguarded:
            unguarded.setattr(live, "MOST_OF_ONE", STREAMS)
            async with _streams(door, vera, STREAMS) as mine, _streams(door, olga, 1) as theirs:
                assert (mine.count(200), mine.count(429), theirs) == (live.MOST_STREAMS, 72, [429])
        async with _streams(door, vera, STREAMS) as mine, _streams(door, olga, 1) as theirs:
            assert (mine.count(200), mine.count(429), theirs) == (live.MOST_OF_ONE, 168, [200])
        async with _streams(door, vera, 1) as mine:
            assert mine == [200], "those that ended are counted no more"
    assert told.services.feed.followers == 0


class SilentProbe:
    """A broker that takes a question and never answers."""

    def __init__(self) -> None:
        self.asked = 0
        self.has_asked = asyncio.Event()
        self.answers = asyncio.Event()

    async def depths(self) -> Depths:
        """Return nothing, once it may answer."""
        self.asked += 1
        self.has_asked.set()
        await self.answers.wait()
        return {}

    async def inboxes(self, agents: Mapping[str, str | None]) -> Depths:
        """Return an empty queue for each agent, once it may answer."""
        await self.depths()
        return {name: QueueDepth(0, 0) for name in agents}


async def test_a_broker_that_never_answers_holds_no_page(told: WebBench, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = SilentProbe()
    object.__setattr__(told.services, "probe", CachedProbe(silent))
    with monkeypatch.context() as unguarded:
        unguarded.setattr(queue_looks, "LONGEST_SECONDS", None)
        waiting = asyncio.create_task(told.get("/agents", queues=True))
        await silent.has_asked.wait()
        assert not waiting.done()
        silent.answers.set()
        assert (await waiting)["is_complete"]

    silent = SilentProbe()
    object.__setattr__(told.services, "probe", CachedProbe(silent))
    monkeypatch.setattr(queue_looks, "LONGEST_SECONDS", 0.1)
    found = await asyncio.gather(*(told.get("/agents", queues=True) for _ in range(100)))
    assert {one["words"] for one in found} == {"the broker does not answer"}
    assert silent.asked == 1, "however many ask"
    assert (await told.get("/system"))["words"] == "the broker does not answer"

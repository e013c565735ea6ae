"""Streams that end all at once leave the feed whole for those that come after."""

import asyncio
from typing import Any

import pytest
from tests.support.waiting import until
from tests.web.conftest import WebBench

from apc_bus.errors import CallAborted
from apc_log import heads
from apc_log.heads import read_ends
from apc_web import live as feed_module

_PATIENCE = 30.0


async def test_streams_that_are_cancelled_again_and_again_end_as_cancelled(bench: WebBench) -> None:
    """As a server that stops does it: each turn of the loop, until they are gone."""
    feed = bench.services.feed
    async with feed.opened():
        waiting = [
            asyncio.create_task(feed.until_changed(feed.ends, was_away=False, patience=_PATIENCE)) for _ in range(5)
        ]
        for _ in range(20):
            await asyncio.sleep(0)
        for _ in range(4):
            for one in waiting:
                one.cancel()
            await asyncio.sleep(0)
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in ends] == [asyncio.CancelledError] * 5, ends


async def test_a_feed_wakes_everybody_who_waits(told: WebBench) -> None:
    feed = told.services.feed
    async with feed.opened():
        behind = {shard: last - 1 for shard, last in feed.ends.items()}
        assert await feed.until_changed(behind, was_away=False, patience=_PATIENCE)
        assert not await feed.until_changed(feed.ends, was_away=False, patience=0.0)


async def test_a_read_that_the_library_cancels_ends_neither_the_feed_nor_a_stream(
    told: WebBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = told.services.feed
    calls = 0

    async def strike(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (2, 3):
            raise asyncio.CancelledError
        return await read_ends(*given)

    async def cancelled(*_: Any, **__: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(heads, "_AWAY_SECONDS", 0.01)
    monkeypatch.setattr(heads, "read_ends", strike)
    async with feed.opened():
        await until(lambda: feed.is_away)
        await until(lambda: calls > 3 and not feed.is_away)
        with monkeypatch.context() as fault:
            fault.setattr(feed_module, "entries_of_shard", cancelled)
            with pytest.raises(CallAborted):
                await feed.entries(0, 0, feed.ends[0])
        assert await feed.entries(0, 0, feed.ends[0]), "it is read again"

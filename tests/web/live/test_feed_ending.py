"""Streams that end all at once leave the feed whole for those that come after."""

import asyncio

from tests.web.conftest import WebBench

_PATIENCE = 30.0


async def test_streams_that_are_cancelled_again_and_again_end_as_cancelled(bench: WebBench) -> None:
    """As a server that stops does it: each turn of the loop, until they are gone."""
    feed = bench.services.feed
    async with feed.opened():
        waiting = [asyncio.create_task(feed.until_changed(feed.heads, False, _PATIENCE)) for _ in range(5)]
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
        behind = {shard: last - 1 for shard, last in feed.heads.items()}
        assert await feed.until_changed(behind, False, _PATIENCE)
        assert not await feed.until_changed(feed.heads, False, 0.0)

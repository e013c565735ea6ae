"""Publishes of one turn go out together, and each caller gets its own answer."""

import asyncio
from collections.abc import Sequence

import pytest

from apc_bus.errors import BusError, PublishRefused
from apc_bus.port import Message, Publication
from apc_bus.rabbit.publisher import Gathering
from apc_bus.topology import INGRESS


def publication(name: str) -> Publication:
    return Publication(INGRESS, "0", Message(b"{}", name))


class Recorder:
    """Takes what is published: `refused` is refused, `unwritable` cannot be written."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    async def publish_all(self, publications: Sequence[Publication]) -> list[BusError | None]:
        names = [one.message.message_id for one in publications]
        self.calls.append(names)
        if "unwritable" in names:
            raise TypeError("too long")
        return [PublishRefused("full") if name == "refused" else None for name in names]


async def test_one_turn_is_one_call() -> None:
    recorder = Recorder()
    gathering = Gathering(recorder.publish_all)
    results = await asyncio.gather(*(gathering.publish(publication(name)) for name in ("a", "refused", "b")))
    assert recorder.calls == [["a", "refused", "b"]]
    assert [type(result) for result in results] == [type(None), PublishRefused, type(None)]
    assert await gathering.publish(publication("c")) is None
    assert recorder.calls[1:] == [["c"]]


async def test_one_that_cannot_be_written_fails_alone() -> None:
    gathering = Gathering(Recorder().publish_all)
    told = (gathering.publish(publication(name)) for name in ("a", "unwritable", "b"))
    results = await asyncio.gather(*told, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), TypeError, type(None)]


async def test_one_that_is_cancelled_before_its_turn_is_not_sent() -> None:
    recorder = Recorder()
    gathering = Gathering(recorder.publish_all)
    first, second = (asyncio.ensure_future(gathering.publish(publication(name))) for name in ("a", "b"))
    # Both have joined the turn that begins with the next callbacks of the loop.
    asyncio.get_running_loop().call_soon(first.cancel)
    await second
    with pytest.raises(asyncio.CancelledError):
        await first
    assert recorder.calls == [["b"]]

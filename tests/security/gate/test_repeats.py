"""An agent publishes one packet over and over: neither the inbox of the recipient nor the agent's own fills up."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest
from tests.orchestrator.conftest import House

from apc_bus import headers
from apc_bus.topology import agent_queue
from apc_contracts import IdeaPayload, Packet, load_contract
from apc_contracts.session.session import OpenPacket, Progress
from apc_orchestrator.judging import verdicts

TIMES, BURST = 40, 5
INBOX = agent_queue("sentinel", urgent=False)
Build = Callable[..., Packet]


def every_open_delivery(opened: OpenPacket, now: datetime, interval: timedelta) -> Iterator[tuple[str, Progress]]:
    """Yield what a gate without the guard delivers again."""
    return ((recipient, progress) for recipient, progress in opened.recipients.items() if progress.is_open)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_repeats_do_not_fill_an_inbox(
    running: House, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(verdicts, "deliveries_to_repeat", every_open_delivery)
    sent = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(sent)
    await running.quiet()
    for _ in range(TIMES):
        await running.publish(sent)
    await running.quiet()
    waiting = (await running.client("operator").depth(INBOX)).messages
    assert waiting == (1 if is_guarded else 1 + TIMES)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_repeats_before_the_confirm_are_delivered_once_in_an_interval(
    running: House, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(verdicts, "deliveries_to_repeat", every_open_delivery)
    sent = packet("red-1", idea, ("sentinel",), parent=running.opening)
    for _ in range(TIMES):
        await running.publish(sent)
    await running.quiet()
    interval = timedelta(milliseconds=load_contract().limits.retry_after_ms)
    assert interval >= timedelta(seconds=1)
    deliveries = await running.read("sentinel")
    if not is_guarded:
        assert len(deliveries) == TIMES
        return
    assert len(deliveries) <= 3, "the first, and a repeat in each interval at most"
    assert {delivery.message.headers[headers.ATTEMPT] for delivery in deliveries} == {1}


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_repeats_draw_the_quota(
    house: House, packet: Build, start: Build, idea: IdeaPayload, contract_with: Callable[..., str], is_guarded: bool
) -> None:
    """Of a flood of refused packets, too, no more is answered than the quota holds."""
    slow = {"agents": {"red-1": {"packets_per_second": 0.001, "burst": BURST}}}
    async with house.persister(), house.gate(contract=contract_with(quota=slow) if is_guarded else None):
        await house.open(start())
        await house.handle_all()
        refused = packet("red-1", idea, ("nobody",), parent=house.opening)
        for _ in range(TIMES):
            await house.publish(refused)
        await house.quiet()
        told = len(await house.nacks("red-1"))
        if not is_guarded:
            assert told == TIMES, "each is answered"
            return
        assert told == 1 + BURST, "the refusal itself draws nothing"
        await house.publish(packet("red-1", idea, ("sentinel",), parent=house.opening))
        await house.quiet()
        (nack,) = await house.nacks("red-1")
    assert nack.metadata["refusal"]["code"] == "QUOTA_EXCEEDED"

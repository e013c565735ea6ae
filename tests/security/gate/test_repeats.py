"""An agent publishes one packet over and over: neither the inbox of the recipient nor the agent's own fills up."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from apc_bus import headers
from apc_bus.topology import agent_queue
from apc_contracts import Packet, load_contract
from apc_contracts.contract_file import Quota
from apc_contracts.session.session import OpenPacket, Progress
from apc_orchestrator import judge

TIMES = 40
INBOX = agent_queue("sentinel", urgent=False)
Build = Callable[..., Packet[Any]]


def every_open_delivery(opened: OpenPacket, now: datetime, interval: timedelta) -> Iterator[tuple[str, Progress]]:
    """What a gate without the guard delivers again."""
    return ((recipient, progress) for recipient, progress in opened.recipients.items() if progress.is_open)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_repeats_do_not_fill_an_inbox(
    running: Any, packet: Build, idea: Any, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(judge, "deliveries_to_repeat", every_open_delivery)
    sent = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(sent)
    await running.quiet()
    for _ in range(TIMES):
        await running.publish(sent)
    await running.quiet()
    waiting = (await running.client("operator").depth(INBOX)).messages
    assert waiting == (1 if is_guarded else 1 + TIMES)


async def test_repeats_before_the_confirm_are_delivered_once_in_an_interval(
    running: Any, packet: Build, idea: Any
) -> None:
    sent = packet("red-1", idea, ("sentinel",), parent=running.opening)
    for _ in range(TIMES):
        await running.publish(sent)
    await running.quiet()
    interval = timedelta(milliseconds=load_contract().limits.retry_after_ms)
    assert interval >= timedelta(seconds=1)
    deliveries = await running.read("sentinel")
    assert len(deliveries) <= 3, "the first, and a repeat in each interval at most"
    assert {delivery.message.headers[headers.ATTEMPT] for delivery in deliveries} == {1}


async def test_repeats_draw_the_quota(running: Any, packet: Build, idea: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a flood of refused packets, too, no more is answered than the quota holds."""
    slow = Quota(packets_per_second=0.001, burst=5)
    monkeypatch.setattr("apc_contracts.quotas.quota_of", lambda rules, agent_id, role: slow)
    refused = packet("red-1", idea, ("nobody",), parent=running.opening)
    for _ in range(TIMES):
        await running.publish(refused)
    await running.quiet()
    assert len(await running.nacks("red-1")) == 1 + slow.burst, "the refusal itself draws nothing"
    late = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(late)
    await running.quiet()
    (nack,) = await running.nacks("red-1")
    assert nack.metadata["refusal"]["code"] == "QUOTA_EXCEEDED"

"""An agent reports an absurd usage, or the end of another agent's delivery: recorded, and nothing ends."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from tests.orchestrator.conftest import House

from apc_bus import headers
from apc_contracts import IdeaPayload, Packet
from apc_contracts.payloads.session_signals import Budgets
from apc_contracts.wire.receipts import Receipt, ReceiptKind, Usage, encode_receipts
from apc_orchestrator.judging import judge

Build = Callable[..., Packet]
TOKENS = {True: 2**53 - 1, False: 10**9}
"""What is drawn is counted in this process: so large a number would leave no room for others there."""
REFUSED = """
SELECT metadata -> 'usage_refused' ->> 'tokens' FROM apc_log.packet_events
WHERE packet_id = $1 AND metadata ? 'usage_refused'
"""
RECORDED = "SELECT kind, user_id FROM apc_log.packet_conflicts"


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_one_report_does_not_end_a_session(
    house: House, packet: Build, start: Build, idea: IdeaPayload, contract_with: Callable[..., str], is_guarded: bool
) -> None:
    path = contract_with() if is_guarded else contract_with(usage=None)
    async with house.persister(), house.gate(contract=path):
        await house.open(start(budgets=Budgets(tokens=1000)))
        await house.handle_all()
        sent = packet("red-1", idea, ("sentinel",), parent=house.opening)
        await house.publish(sent)
        await house.quiet()
        await house.read("sentinel")
        await house.report("sentinel", sent.packet_id, ReceiptKind.OUTCOME, usage=Usage(tokens=TOKENS[is_guarded]))
        await house.quiet()
        after = packet("blue-1", idea, ("sentinel",), parent=house.opening)
        await house.publish(after)
        await house.quiet()
        assert (await house.state() == "HALTED") is not is_guarded
        assert (await house.state_of(after) == "ROUTED") is is_guarded
        told = await house.pool.fetchval(REFUSED, sent.packet_id)
    assert told == (str(TOKENS[True] - 500) if is_guarded else None)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_nobody_ends_the_delivery_of_another(
    running: House, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(judge, "is_authentic", lambda *given: True)
    victim = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(victim)
    await running.quiet()
    forged = Receipt(
        packet_id=victim.packet_id,
        session_id=victim.trace.session_id,
        recipient="sentinel",
        kind=ReceiptKind.OUTCOME,
        attempt=1,
        at=datetime.now(UTC),
    )
    carrier = packet("blue-1", idea, ("red-1",), parent=running.opening)
    await running.publish(carrier, headers={headers.RECEIPTS: encode_receipts([forged]).decode()})
    await running.quiet()
    assert await running.state_of(carrier) == "ROUTED", "the packet itself is judged as any other"
    assert await running.state_of(victim) == ("ROUTED" if is_guarded else "ARCHIVED")
    recorded = [tuple(row) for row in await running.pool.fetch(RECORDED)]
    assert recorded == ([("security", "agent.blue-1")] if is_guarded else [])

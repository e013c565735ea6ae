"""An agent reports an absurd usage of one delivery: it is recorded and refused, and the session goes on."""

from collections.abc import Callable
from typing import Any

import pytest

from apc_contracts import Packet
from apc_contracts.payloads.session_signals import Budgets
from apc_contracts.wire.receipts import ReceiptKind, Usage

Build = Callable[..., Packet]
TOKENS = {True: 2**53 - 1, False: 10**9}
"""What is drawn is counted in this process: so large a number would leave no room for others there."""
REFUSED = """
SELECT metadata -> 'usage_refused' ->> 'tokens' FROM apc_log.packet_events
WHERE packet_id = $1 AND metadata ? 'usage_refused'
"""


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_one_report_does_not_end_a_session(
    house: Any, packet: Build, start: Build, idea: Any, contract_with: Callable[..., str], is_guarded: bool
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

"""One sender floods a recipient that does not read: it is refused, and the others still reach the recipient."""

from collections.abc import Callable

import pytest
from tests.orchestrator.conftest import House

from apc_contracts import IdeaPayload, Packet
from apc_contracts.judging.quotas import Outstanding

Build = Callable[..., Packet]
BOUND = 8
VERDICTS = "SELECT refusal_code, verdict FROM apc_log.agent_packets WHERE sender_agent_id = $1 ORDER BY seq"


async def verdicts(house: House, sender: str) -> list[str]:
    await house.quiet()
    return [row["refusal_code"] or row["verdict"] for row in await house.pool.fetch(VERDICTS, sender)]


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_flooding_sender_starves_nobody(
    house: House,
    packet: Build,
    start: Build,
    idea: IdeaPayload,
    contract_with: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    is_guarded: bool,
) -> None:
    if not is_guarded:  # as if every open delivery were the sender's own
        monkeypatch.setattr(Outstanding, "of", lambda self, sender: None)
    async with house.persister(), house.gate(contract=contract_with(outstanding_deliveries=BOUND)):
        await house.open(start())
        await house.handle_all()
        for _ in range(BOUND + 3):
            await house.publish(packet("red-1", idea, ("sentinel",), parent=house.opening))
        assert await verdicts(house, "red-1") == ["accepted"] * BOUND + ["OVERLOADED"] * 3
        for _ in range(BOUND // 2):
            await house.publish(packet("blue-1", idea, ("sentinel",), parent=house.opening))
        honest = await verdicts(house, "blue-1")
        assert honest == ["accepted" if is_guarded else "OVERLOADED"] * (BOUND // 2)
        assert len(await house.handle("sentinel")) == BOUND + (BOUND // 2 if is_guarded else 0)
        await house.quiet()
        await house.publish(packet("red-1", idea, ("sentinel",), parent=house.opening))
        assert (await verdicts(house, "red-1"))[-1] == "accepted", "what has ended counts no more"

"""A sender beyond its quota, an inbox beyond its bound. The house replays every log at its end."""

import json
from collections.abc import Callable
from datetime import timedelta
from importlib.resources import files
from pathlib import Path

import pytest
from tests.orchestrator.conftest import House

from apc_contracts import IdeaPayload, Packet
from apc_contracts.contract.contract import PACKAGED_CONTRACT
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.vocabulary import AckStatus, Signal

Build = Callable[..., Packet]
VERDICTS = "SELECT packet_id, verdict, refusal_code FROM apc_log.agent_packets WHERE sender_agent_id = $1 ORDER BY seq"
BURST, BOUND, HOUR = 3, 4, timedelta(hours=1)


@pytest.fixture
def contract_path(tmp_path: Path) -> str:
    """The packaged contract with a small quota for red-1 and a small bound for every inbox."""
    file = json.loads((files("apc_contracts") / PACKAGED_CONTRACT).read_text())
    file["limits"]["quota"]["agents"] = {"red-1": {"packets_per_second": 0.01, "burst": BURST}}
    file["limits"]["outstanding_deliveries"] = BOUND
    path = tmp_path / "contract.json"
    path.write_text(json.dumps(file))
    return str(path)


async def verdicts(house: House, sender: str) -> list[str]:
    await house.quiet()
    return [row["refusal_code"] or row["verdict"] for row in await house.pool.fetch(VERDICTS, sender)]


async def test_beyond_its_quota_a_sender_is_deferred_and_no_other(
    house: House, packet: Build, start: Build, idea: IdeaPayload, contract_path: str
) -> None:
    async with house.persister():
        async with house.gate(contract=contract_path):
            opening = await house.open(start())
            await house.handle_all()
            for to in ("nobody", "blue-1", "sentinel", "blue-1", "sentinel"):
                await house.publish(packet("red-1", idea, (to,), parent=opening))
            await house.publish(packet("blue-1", idea, ("sentinel",), parent=opening))
            # What is refused for another reason draws nothing.
            refused = ["UNROUTABLE"] + ["accepted"] * BURST + ["QUOTA_EXCEEDED"]
            assert await verdicts(house, "red-1") == refused
            assert await verdicts(house, "blue-1") == ["accepted"]
            _, nack = await house.nacks("red-1")
            assert nack.payload.ack_status is AckStatus.DEFERRED
            told = nack.metadata["refusal"]
            assert told["code"] == "QUOTA_EXCEEDED" and 0 < told["retry_after_ms"] <= 100_000
            query = packet("red-1", SignalPayload(signal=Signal.QUERY), ("blue-1",), parent=opening)
            await house.publish(query)
            assert (await verdicts(house, "red-1"))[-1] == "accepted"
        async with house.gate(contract=contract_path):  # the buckets are the gate's own: they begin full
            await house.publish(packet("red-1", idea, ("blue-1",), parent=opening))
            assert (await verdicts(house, "red-1"))[-1] == "accepted"


async def test_what_a_pause_holds_is_drawn_when_it_comes(
    house: House, packet: Build, start: Build, idea: IdeaPayload, contract_path: str
) -> None:
    async with house.persister(), house.gate(contract=contract_path):
        opening = await house.open(start())
        await house.handle_all()
        await house.publish(packet("librarian", SignalPayload(signal=Signal.PAUSE), parent=opening))
        for _ in range(BURST + 1):
            await house.publish(packet("red-1", idea, ("blue-1",), parent=opening))
        assert await verdicts(house, "red-1") == ["held"] * BURST + ["QUOTA_EXCEEDED"]
        await house.publish(packet("librarian", SignalPayload(signal=Signal.RESUME), parent=opening))
        await house.quiet()
        assert len([one for one in await house.handle("blue-1") if one.sender.agent_id == "red-1"]) == BURST


async def test_an_inbox_beyond_its_bound_refuses_until_something_ends(
    house: House, packet: Build, start: Build, idea: IdeaPayload, contract_path: str
) -> None:
    async with house.persister(), house.gate(contract=contract_path):
        opening = await house.open(start())
        await house.handle_all()
        for _ in range(BOUND + 2):
            await house.publish(packet("blue-1", idea, ("sentinel",), parent=opening))
        await house.publish(packet("blue-1", idea, ("red-1",), parent=opening))
        assert await verdicts(house, "blue-1") == ["accepted"] * BOUND + ["OVERLOADED"] * 2 + ["accepted"]
        told = [nack.metadata["refusal"] for nack in await house.nacks("blue-1")]
        assert [one["code"] for one in told] == ["OVERLOADED"] * 2
        assert all(one["retry_after_ms"] == 1000 for one in told)
        assert len(await house.handle("sentinel")) == BOUND
        await house.quiet()
        await house.publish(packet("blue-1", idea, ("sentinel",), parent=opening))
        assert (await verdicts(house, "blue-1"))[-1] == "accepted"


async def test_what_expired_on_its_way_is_refused_and_reaches_nobody(
    house: House, packet: Build, start: Build, idea: IdeaPayload, contract_path: str
) -> None:
    async with house.persister(), house.gate(contract=contract_path):
        opening = await house.open(start())
        await house.handle_all()
        late = packet(
            "blue-1", idea, ("sentinel",), parent=opening, ttl_ms=60_000, created_at=opening.created_at - HOUR
        )
        await house.publish(late)
        assert await verdicts(house, "blue-1") == ["EXPIRED"]
        (nack,) = await house.nacks("blue-1")
        assert nack.payload.acked_packet_id == late.packet_id and nack.payload.ack_status is AckStatus.REJECTED
        assert not await house.read("sentinel")

"""An agent floods the gate with what is refused: the log takes a beginning and a count, and honest agents go on."""

from collections.abc import Callable
from hashlib import sha256
from uuid import uuid4

import pytest
from tests.orchestrator.conftest import House

from apc_bus.port import Message, Publication
from apc_bus.topology import INGRESS
from apc_contracts import IdeaPayload, Packet
from apc_contracts.wire.refused_input import Kept
from apc_orchestrator.judging import refusals

Build = Callable[..., Packet]
LARGE = 1 << 20
TIMES, BURST = 50, 8
SMALL = {"messages_per_second": 0.001, "messages_burst": BURST}
CONFLICTS = "SELECT kind, code, reason, raw, second_hash, user_id FROM apc_log.packet_conflicts ORDER BY seq"


async def flood(house: House, body: bytes, times: int = 1, user: str = "agent.red-1") -> None:
    for _ in range(times):
        message = Message(body, str(uuid4()), type="IDEA", user_id=user)
        await house.client(user).publish(Publication(INGRESS, "0", message))
    await house.quiet()


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_of_a_large_body_the_log_keeps_the_beginning(
    running: House, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(refusals, "kept_of", lambda body, rules: Kept(body))
    body = b"{" + b"x" * (LARGE - 1)
    await flood(running, body)
    (row,) = await running.pool.fetch(CONFLICTS)
    if not is_guarded:
        assert row["raw"] == body
        return
    assert (row["raw"], row["second_hash"]) == (body[:4096], sha256(body).digest())
    assert f"[{LARGE} bytes, the first 4096 of them kept" in row["reason"]


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_beyond_its_quota_refused_input_is_counted(
    house: House, packet: Build, start: Build, idea: IdeaPayload, contract_with: Callable[..., str], is_guarded: bool
) -> None:
    async with house.persister(), house.gate(contract=contract_with(refused=SMALL) if is_guarded else None):
        await house.open(start())
        await house.handle_all()
        await flood(house, b"no packet", TIMES)
        honest = packet("blue-1", idea, ("sentinel",), parent=house.opening)
        await house.publish(honest)
        await house.quiet()
        assert await house.state_of(honest) == "ROUTED"
        rows = await house.pool.fetch(CONFLICTS)
        answers = await house.nacks("red-1")
    kept = [row for row in rows if row["kind"] == "unreadable"]
    floods = [row for row in rows if row["kind"] == "flood"]
    assert len(kept) == len(answers) == (BURST if is_guarded else TIMES)
    assert sum(int(row["reason"].split()[0]) for row in floods) == TIMES - len(kept), "each is accounted for"
    assert {(row["code"], row["user_id"]) for row in floods} <= {("QUOTA_EXCEEDED", "agent.red-1")}


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_packets_that_are_refused_draw_the_same_quota(
    house: House, packet: Build, start: Build, idea: IdeaPayload, contract_with: Callable[..., str], is_guarded: bool
) -> None:
    """What would stand in the log under its own id does not, and is judged again when it comes again."""
    async with house.persister(), house.gate(contract=contract_with(refused=SMALL) if is_guarded else None):
        await house.open(start())
        await house.handle_all()
        for _ in range(TIMES):
            await house.publish(packet("red-1", idea, ("nobody",), parent=house.opening))
        await house.quiet()
        refused = await house.pool.fetchval("SELECT count(*) FROM apc_log.agent_packets WHERE verdict = 'refused'")
        reasons = [row["reason"] for row in await house.pool.fetch(CONFLICTS) if row["kind"] == "flood"]
        good = packet("red-1", idea, ("sentinel",), parent=house.opening)
        await house.publish(good)
        await house.quiet()
        assert await house.state_of(good) == "ROUTED", "what is admitted draws nothing of it"
    assert refused == (BURST if is_guarded else TIMES)
    assert sum(int(reason.split()[0]) for reason in reasons) == TIMES - refused

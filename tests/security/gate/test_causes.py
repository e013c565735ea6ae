"""An agent names as its cause a packet that was never delivered to it: what others are told it caused stays true."""

from collections.abc import Callable

import orjson
import pytest
from tests.orchestrator.conftest import House

from apc_bus import headers
from apc_contracts import IdeaPayload, Packet
from apc_contracts.identity.ids import reply_id
from apc_contracts.vocabulary import DeliveryMode
from apc_orchestrator.judging.verdicts import FactFinder

Build = Callable[..., Packet]
STORED = "SELECT cause_packet_id, facts FROM apc_log.agent_packets WHERE packet_id = $1"


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_cause_of_others_is_a_claim_and_no_cause(
    running: House, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(FactFinder, "_is_cause_delivered", lambda *_: True)
    foreign = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(foreign)
    claiming = packet("blue-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(claiming, headers={headers.CAUSE: str(foreign.packet_id), headers.ORDINAL: 0})
    await running.quiet()
    row = await running.pool.fetchrow(STORED, claiming.packet_id)
    facts = orjson.loads(row["facts"])
    assert row["cause_packet_id"] == (None if is_guarded else foreign.packet_id)
    assert facts.get("claimed_cause") == (str(foreign.packet_id) if is_guarded else None)


async def test_a_cause_that_was_delivered_is_stored(running: House, packet: Build, idea: IdeaPayload) -> None:
    asked = packet("red-1", idea, ("blue-1",), parent=running.opening)
    await running.publish(asked)
    await running.quiet()
    answer = packet("blue-1", idea, ("red-1",), parent=asked, packet_id=reply_id(asked.packet_id, "blue-1", 0))
    await running.publish(answer, headers={headers.CAUSE: str(asked.packet_id), headers.ORDINAL: 0})
    await running.quiet()
    row = await running.pool.fetchrow(STORED, answer.packet_id)
    assert row["cause_packet_id"] == asked.packet_id
    assert orjson.loads(row["facts"])["cause"] == str(asked.packet_id)


async def test_everybody_has_got_what_the_substrate_holds(running: House, packet: Build, idea: IdeaPayload) -> None:
    said = packet("red-1", idea, ("_substrate",), parent=running.opening, mode=DeliveryMode.SUBSTRATE)
    await running.publish(said)
    await running.quiet()
    answer = packet("blue-1", idea, ("red-1",), parent=said, packet_id=reply_id(said.packet_id, "blue-1", 0))
    await running.publish(answer, headers={headers.CAUSE: str(said.packet_id), headers.ORDINAL: 0})
    await running.quiet()
    row = await running.pool.fetchrow(STORED, answer.packet_id)
    assert row["cause_packet_id"] == said.packet_id


async def test_a_repeat_of_a_claim_is_a_repeat(running: House, packet: Build, idea: IdeaPayload) -> None:
    """The same content in other bytes: it is compared with what was stored of the first."""
    foreign = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(foreign)
    claiming = packet("blue-1", idea, ("sentinel",), parent=running.opening)
    again = packet("blue-1", idea, ("sentinel",), parent=running.opening, packet_id=claiming.packet_id)
    named = {headers.CAUSE: str(foreign.packet_id)}
    for one in (claiming, again):
        await running.publish(one, headers=named)
    await running.quiet()
    assert await running.pool.fetchval("SELECT count(*) FROM apc_log.packet_conflicts") == 0

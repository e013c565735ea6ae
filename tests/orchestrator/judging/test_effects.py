"""Effects that workers report: hops of the log, each once, through takeovers; and verdicts that a sender asks for."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from tests.orchestrator.conftest import House
from tests.support.traffic.packets import SESSION

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_contracts import IdeaPayload, Packet, PacketType, load_contract, parse_packet
from apc_contracts.contract.collection import Contracts
from apc_contracts.identity.ids import reply_id
from apc_contracts.session.session import Session
from apc_contracts.wire.receipts import EffectEntry, EffectReport, Receipt, ReceiptKind, encode_receipts
from apc_log.session_loading import load_session

Build = Callable[..., Packet]
ENTRIES = """
SELECT events[1] AS event, attempt, from_state || to_state AS states, actor, metadata -> 'effect' AS effect
FROM apc_log.packet_events WHERE packet_id = $1 AND metadata ? 'effect' ORDER BY seq
"""
CONFLICTS = "SELECT kind, reason FROM apc_log.packet_conflicts ORDER BY seq"
CLAIM = UUID(int=7)


def entry_of(packet: Packet, entry: EffectEntry, *, claim: UUID = CLAIM, **fields: Any) -> Receipt:
    return Receipt(
        packet_id=packet.packet_id,
        session_id=packet.trace.session_id,
        recipient=fields.get("recipient", "sentinel"),
        kind=ReceiptKind.EFFECT,
        attempt=1,
        at=datetime.now(UTC),
        by=fields.get("by"),
        effect=EffectReport(key="charge", claim=claim, entry=entry, note=fields.get("note")),
    )


async def report(house: House, *receipts: Receipt, user: str = "agent.sentinel") -> None:
    message = Message(encode_receipts(receipts), str(uuid4()), type=headers.TYPE_RECEIPTS, user_id=user)
    await house.client(user).publish(Publication(RECEIPTS, "0", message))
    await house.quiet()


async def delivered(house: House, packet: Build, idea: IdeaPayload) -> Packet:
    sent = packet("red-1", idea, ("sentinel",), parent=house.opening)
    await house.publish(sent)
    await house.quiet()
    return sent


async def test_each_entry_is_logged_once_whatever_gate_reads_it(
    house: House, packet: Build, start: Build, idea: IdeaPayload
) -> None:
    async with house.persister():
        async with house.gate():
            await house.open(start())
            sent = await delivered(house, packet, idea)
            claimed, unknown = entry_of(sent, EffectEntry.CLAIMED), entry_of(sent, EffectEntry.UNKNOWN, note="it died")
            await report(house, claimed, unknown, claimed)
        async with house.gate():  # it knows what the log has
            await report(house, claimed, unknown)
            await report(house, entry_of(sent, EffectEntry.SETTLED, by="librarian"), user="agent.librarian")
            await house.handle("sentinel")
            await report(house, entry_of(sent, EffectEntry.CLAIMED, claim=uuid4()))
    rows = await house.pool.fetch(ENTRIES, sent.packet_id)
    assert [(row["event"], row["states"], row["actor"]) for row in rows] == [
        ("effect_claimed", "", "sentinel"),
        ("effect_unknown", "", "sentinel"),
        ("effect_settled", "", "librarian"),
        ("effect_claimed", "", "sentinel"),
    ]
    assert [row["attempt"] for row in rows] == [-1, -2, -3, -4]
    assert orjson.loads(rows[1]["effect"])["note"] == "it died"
    session = await load_session(house.pool, SESSION, Contracts(load_contract()))
    assert isinstance(session, Session)
    assert (session.effect("charge"), session.effect("another")) == ("claimed", "absent")
    assert await house.state_of(sent) == "ARCHIVED"


async def test_an_entry_leaves_the_delivery_as_it_is(
    house: House, packet: Build, start: Build, idea: IdeaPayload
) -> None:
    """Also where it comes before everything else of it, and another gate takes the shard."""
    async with house.persister():
        async with house.gate():
            await house.open(start())
            await house.handle_all()
            sent = await delivered(house, packet, idea)
            await report(house, entry_of(sent, EffectEntry.CLAIMED))
            await house.read("sentinel")
        async with house.gate():
            again: list[Any] = []

            async def comes_again() -> bool:
                again.extend(await house.read("sentinel"))
                return bool(again)

            await house.until(comes_again)
            assert [one.message.headers[headers.ATTEMPT] for one in again] == [1]
            await house.report("sentinel", sent.packet_id, ReceiptKind.OUTCOME)
            await house.quiet()
    assert await house.state_of(sent) == "ARCHIVED"


async def test_who_asks_is_told_that_a_packet_is_accepted(running: House, packet: Build, idea: IdeaPayload) -> None:
    sent = await delivered(running, packet, idea)
    await running.read("red-1")
    await running.publish(sent)
    await running.quiet()
    assert await running.read("red-1") == []
    await running.publish(sent, headers={headers.ASKS_VERDICT: True})
    await running.quiet()
    (told,) = await running.read("red-1")
    answer: Any = parse_packet(told.message.body)
    assert (answer.packet_type, answer.payload.acked_packet_id) == (PacketType.ACK, sent.packet_id)
    assert answer.packet_id == reply_id(sent.packet_id, "orchestrator", "accepted")
    count = "SELECT count(*) FROM apc_log.agent_packets WHERE packet_id = $1"
    assert await running.pool.fetchval(count, answer.packet_id) == 0


async def test_who_asks_is_told_of_a_refusal(running: House, packet: Build, idea: IdeaPayload) -> None:
    refused = packet("red-1", idea, ("nobody",), parent=running.opening)
    await running.publish(refused)
    await running.quiet()
    await running.read("red-1")
    await running.publish(refused, headers={headers.ASKS_VERDICT: True})
    await running.quiet()
    (nack,) = await running.nacks("red-1")
    assert nack.metadata["refusal"]["code"] == "UNROUTABLE"


async def test_nobody_is_told_of_the_packet_of_another(running: House, packet: Build, idea: IdeaPayload) -> None:
    sent = await delivered(running, packet, idea)
    await running.read("red-1"), await running.read("blue-1")
    await running.publish(sent, user="agent.blue-1", headers={headers.ASKS_VERDICT: True})
    await running.quiet()
    found = [*await running.read("red-1"), *await running.read("blue-1")]
    assert PacketType.ACK not in [parse_packet(one.message.body).packet_type for one in found]


@pytest.mark.parametrize("is_early", [False, True])
async def test_an_entry_for_nobody_is_kept_apart(
    running: House, packet: Build, idea: IdeaPayload, is_early: bool
) -> None:
    sent = packet("red-1", idea, ("nobody" if is_early else "sentinel",), parent=running.opening)
    await running.publish(sent)
    await running.quiet()
    receipt = entry_of(sent, EffectEntry.MADE, recipient="sentinel" if is_early else "blue-1")
    await report(running, receipt, user=f"agent.{receipt.recipient}")
    assert await running.pool.fetch(ENTRIES, sent.packet_id) == []
    rows = await running.pool.fetch(CONFLICTS)
    assert [tuple(row) for row in rows if row["kind"] == "security"] == [
        ("security", f"effect of a packet that was not delivered to {receipt.recipient}")
    ]

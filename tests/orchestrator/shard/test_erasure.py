"""A gate over a log of encrypted bodies: it goes on after a restart, and ends what was erased meanwhile."""

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from tests.orchestrator.conftest import House
from tests.support.log import bytes_of_tables

from apc_contracts import IdeaPayload, Packet, parse_packet
from apc_contracts.vocabulary import PacketType
from apc_persister.encryption import erase_subject

Build = Callable[..., Packet]
SECRET = "the tender rose of Ispahan"


@pytest.fixture(autouse=True)
def encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_ENCRYPT_BODIES", "true")
    monkeypatch.setenv("APC_SUBJECT_MASTER_KEY", b64encode(bytes(range(32))).decode())


async def run_until_the_gate_dies(house: House, opening: Packet, sent: Packet) -> list[Any]:
    """Return a session with one delivery on its way, and the gate is gone; what the recipient has of it."""
    async with house.gate():
        await house.register()
        await house.publish(opening)
        await house.publish(sent)
        await house.quiet()
        for agent in ("red-1", "blue-1", "librarian"):
            await house.handle(agent)
        await house.quiet()
    return list(await house.read("sentinel"))


async def test_open_deliveries_come_again_from_encrypted_bodies(
    house: House, packet: Build, start: Build, idea: IdeaPayload
) -> None:
    opening = start()
    sent = packet("red-1", idea.model_copy(update={"intent": SECRET}), ("sentinel",), parent=opening)
    async with house.persister():
        first = await run_until_the_gate_dies(house, opening, sent)
        async with house.pool.acquire() as connection:
            assert SECRET.encode() not in await bytes_of_tables(connection)
        async with house.gate():
            await house.publish(sent)  # known by its hash, which is in the encrypted body
            await house.quiet()
            again = await house.read("sentinel")
            await house.report("sentinel", sent.packet_id, "delivery_ack", "consumer_apply", "outcome")
            await house.quiet()
    assert {one.message.body for one in again} == {one.message.body for one in first}
    assert await house.state_of(sent) == "ARCHIVED"
    assert await house.pool.fetchval("SELECT count(*) FROM apc_log.packet_conflicts WHERE kind <> 'rerun'") == 0


async def test_an_erased_delivery_ends_and_the_session_goes_on(
    house: House, packet: Build, start: Build, idea: IdeaPayload
) -> None:
    opening = start()
    sent = packet("red-1", idea.model_copy(update={"intent": SECRET}), ("sentinel",), parent=opening)
    async with house.persister():
        await run_until_the_gate_dies(house, opening, sent)
        async with house.pool.acquire() as connection:
            await erase_subject(connection, "red-1")
        for _ in range(2):  # its end is logged once, and found by the next gate
            async with house.gate():
                await house.quiet()
                assert str(sent.packet_id) not in [one.message.message_id for one in await house.read("sentinel")]
        async with house.gate():
            await house.publish(sent)
            later = packet("blue-1", idea, ("sentinel",), parent=opening)
            await house.publish(later)
            await house.quiet()
            assert str(later.packet_id) in [one.message.message_id for one in await house.read("sentinel")]
            found: list[Any] = [parse_packet(one.message.body) for one in await house.read("red-1")]
    hops = await house.pool.fetch(
        "SELECT to_state, metadata FROM apc_log.packet_events WHERE packet_id = $1 AND recipient = 'sentinel'",
        sent.packet_id,
    )
    assert [row["to_state"] for row in hops] == ["EXPIRED"]
    assert orjson.loads(hops[0]["metadata"])["ended"] == "expired"
    codes = [one.metadata["refusal"]["code"] for one in found if one.packet_type is PacketType.NACK]
    assert codes == ["DUPLICATE_CONFLICT"], "its id is taken, and nobody knows any more by what"

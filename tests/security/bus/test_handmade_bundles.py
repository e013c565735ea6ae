"""Bundles made by hand: a part harms only itself, a bundle beyond its bounds is one unreadable input."""

from typing import Any
from uuid import uuid4

import msgspec
import pytest
from tests.integration.conftest import House, house, shards
from tests.support.traffic import make_idea, make_packet, until

from apc_bus.port import Message, Publication
from apc_bus.rabbit import bundles
from apc_bus.topology import INGRESS, gate_queue
from apc_contracts import Packet, seal

__all__ = ["house", "shards"]
KINDS = "SELECT kind, code, raw FROM apc_log.packet_conflicts ORDER BY seq"


def part(body: bytes, packet_id: str, **told: Any) -> list[Any]:
    return [body, packet_id, "IDEA", None, "application/json", told]


def part_of(packet: Packet, **told: Any) -> list[Any]:
    return part(seal(packet).body, str(packet.packet_id), **told)


async def send(house: House, parts: list[Any], **properties: Any) -> bytes:
    """Publish a bundle as an agent's program could."""
    body = msgspec.msgpack.encode(parts)
    properties = {"user_id": house.agents.bus.user} | properties
    message = Message(body, str(uuid4()), content_type=bundles.CONTENT_TYPE, **properties)
    await house.agents.bus.publish(Publication(INGRESS, "0", message))
    return body


async def kinds(house: House) -> list[tuple[str, str | None, bytes]]:
    return [tuple(row) for row in await house.pool.fetch(KINDS)]


@pytest.mark.broker
async def test_a_part_harms_only_itself(house: House) -> None:
    async with house.persister(), house.gate():
        await house.open_session()
        first, told, last = (
            make_packet("red-1", make_idea(name), ("sentinel",), parent=house.opening) for name in "abc"
        )
        nested = msgspec.msgpack.encode([part_of(first)])
        parts = [
            part(b"{", str(uuid4())),
            part_of(told, CC=["apc.agent.blue-1.normal"]),
            part_of(first),
            part(nested, str(uuid4())),
            part_of(first),
            part_of(last),
        ]
        await send(house, parts)
        await until(house.has_come_to("ROUTED", last.packet_id, ""))
        await until(house.has_come_to("ROUTED", first.packet_id, ""))
        assert [(kind, raw) for kind, _, raw in await kinds(house) if kind == "unreadable"] == [
            ("unreadable", b"{"),
            ("unreadable", nested),
        ]
        assert await house.count("agent_packets", f"packet_id = '{told.packet_id}' AND verdict = 'admitted'") == 0


@pytest.mark.broker
@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_bundle_of_a_thousand_parts_is_one_input(
    house: House, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """Else one message, which the queue counts as one, makes a thousand entries."""
    if not is_guarded:
        monkeypatch.setattr(bundles, "_decoder", msgspec.msgpack.Decoder(list[bundles._Part]))
        # The subscription numbers parts by this.
        monkeypatch.setattr("apc_bus.rabbit.consumer.MOST_PARTS", 1 << 20)
    async with house.persister(), house.gate():
        await house.open_session()
        body = await send(house, [part(b"{%d" % number, str(uuid4())) for number in range(1000)])
        last = make_packet("red-1", make_idea("the gate goes on"), ("sentinel",), parent=house.opening)
        await house.agents.publish(last)
        await until(house.has_come_to("ROUTED", last.packet_id, ""))
        found = await kinds(house)
    if is_guarded:
        ((kind, _, raw),) = found
        assert kind == "unreadable" and body.startswith(raw)
    else:
        assert len(found) > 100


@pytest.mark.broker
async def test_what_dies_in_a_bundle_leaves_its_own_bytes(house: House) -> None:
    packets = [make_packet("red-1", make_idea(name), ("sentinel",), parent=house.opening) for name in "abc"]
    async with house.persister():
        async with house.gate():
            await house.open_session()
        await send(house, [part_of(one, **{"x-first-death-reason": "forged"}) for one in packets], expiration_ms=1)

        async def is_dead() -> bool:
            return not (await house.agents.bus.depth(gate_queue(0))).messages

        await until(is_dead)
        async with house.gate():
            await until(lambda: _has(house, 3))
            assert [(kind, code, raw) for kind, code, raw in await kinds(house)] == [
                ("dead_input", "EXPIRED", seal(one).body) for one in packets
            ]


async def _has(house: House, count: int) -> bool:
    return len(await kinds(house)) == count

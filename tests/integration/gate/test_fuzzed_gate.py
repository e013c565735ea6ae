"""Any bytes at a live gate: each body ends as a verdict or in quarantine with its bytes, and the gate goes on."""

from collections.abc import Callable
from hashlib import sha256
from random import Random
from uuid import uuid4

import pytest
from tests.integration.conftest import House
from tests.support.hostile_bytes import HostileBytes
from tests.support.traffic import make_idea, make_packet, make_start, until

from apc_bus.port import Bus, Message, Publication
from apc_bus.topology import INGRESS, RECEIPTS
from apc_contracts import AckPayload, Packet, SignalPayload, seal
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.vocabulary import AckStatus, Signal

SEED = 20260219
AT_ONCE = 500
UNREADABLE = ("TOO_DEEP", "MALFORMED", "SCHEMA_INVALID")
KEPT = """
SELECT packet_hash AS hash FROM apc_log.agent_packets
UNION SELECT coalesce(second_hash, sha256(raw)) FROM apc_log.packet_conflicts
"""
KINDS = """
SELECT coalesce(refusal ->> 'code', verdict) AS kind, count(*) AS count FROM apc_log.agent_packets GROUP BY 1
UNION ALL SELECT kind || coalesce(' ' || code, ''), count(*) FROM apc_log.packet_conflicts GROUP BY 1
"""


def good_packets(opening: Packet) -> list[Packet]:
    """Packets that the gate takes, or refuses by its contract."""
    payloads = [
        make_idea(),
        AckPayload(acked_packet_id=opening.packet_id, ack_status=AckStatus.ACCEPTED),
        SignalPayload(signal=Signal.QUERY, reason="how is it?"),
    ]
    packets = [make_packet("red-1", payload, ("blue-1",), parent=opening) for payload in payloads]
    return [*packets, make_start(), make_start(str(uuid4()))]


def with_fresh_id(packet_id: bytes, body: bytes) -> bytes:
    """Return a new id: one that exists would make most of what follows a repeat, which leaves no trace."""
    return body.replace(packet_id, str(new_packet_id()).encode())


def hostile_publications(opening: Packet, user: str, count: int) -> list[Publication]:
    """Bodies from the seed, most to apc.ingress, some to apc.receipts as each of its types."""
    chance, found = Random(SEED), []
    good = [(str(packet.packet_id).encode(), seal(packet).body) for packet in good_packets(opening)]
    for _ in range(count):
        hostile = HostileBytes([with_fresh_id(*one) for one in good], chance)
        kind = chance.choice(["IDEA", "ACK", "SIGNAL", "receipts", "registry", "", "\x00"])
        exchange = RECEIPTS if kind in ("receipts", "registry") else INGRESS
        message = Message(hostile.body(), str(uuid4()), type=kind, user_id=user)
        found.append(Publication(exchange, "0", message))
    return found


async def publish_confirmed(bus: Bus, publications: list[Publication]) -> None:
    """Publish until each is confirmed: what is unknown is published again."""
    while publications:
        results = await bus.publish_all(publications)
        publications = [one for one, error in zip(publications, results, strict=True) if error is not None]


async def judge_all(house: House, count: int, exercised: Callable[..., None]) -> None:
    async with house.persister(), house.gate():
        await house.open_session()
        publications = hostile_publications(house.opening, house.agents.bus.user, count)
        for start in range(0, count, AT_ONCE):
            await publish_confirmed(house.agents.bus, publications[start : start + AT_ONCE])
        last = make_packet("red-1", make_idea("the gate goes on"), ("sentinel",), parent=house.opening)
        await house.agents.publish(last)
        await until(house.is_logged(last.packet_id), 600)
        await until(house.has_come_to("ROUTED", last.packet_id, ""))
        kept = {row["hash"] for row in await house.pool.fetch(KEPT)}
        kinds = {row["kind"]: row["count"] for row in await house.pool.fetch(KINDS)}
    lost = [one.message.body for one in publications if sha256(one.message.body).digest() not in kept]
    print(f"{count} bodies at a live gate, {len(lost)} without a trace: {dict(sorted(kinds.items()))}")
    exercised("any bytes at a live gate", packets=count, injected=count, lost=len(lost))
    assert lost == []
    assert {
        "accepted",
        "NOT_AUTHORIZED",
        "UNKNOWN_SESSION",
        "unreadable MALFORMED",
        "unreadable SCHEMA_INVALID",
        "unreadable TOO_DEEP",
    } <= set(kinds)


@pytest.mark.long
async def test_a_thousand_hostile_bodies(house: House, exercised: Callable[..., None]) -> None:
    await judge_all(house, 1000, exercised)


@pytest.mark.faults
@pytest.mark.timeout(1800)
async def test_fifty_thousand_hostile_bodies(house: House, exercised: Callable[..., None]) -> None:
    await judge_all(house, 50_000, exercised)

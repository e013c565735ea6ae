"""Repeats, conflicts, captured and forged packets amid a load: none has an effect (rows 17, 18, 28 to 31, 33)."""

from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from pydantic import SecretStr
from tests.faults.cast import AWAY
from tests.faults.hostile.attacks import DOZENS, Attack
from tests.support.traffic import until

from apc_agents.keys import make_key
from apc_bus import headers
from apc_bus.errors import PublishRefused
from apc_bus.rabbit import connect_rabbit
from apc_bus.settings import BusSettings
from apc_contracts import seal
from apc_contracts.identity.ids import new_packet_id

pytestmark = pytest.mark.faults
TIMES = 4
CONFLICTS = "SELECT packet_id, first_hash, second_hash FROM apc_log.packet_conflicts"
HASHES = "SELECT packet_id, packet_hash FROM apc_log.agent_packets WHERE packet_id = ANY($1)"
TRACES = """
SELECT packet_id FROM apc_log.agent_packets WHERE packet_id = ANY($1)
UNION ALL SELECT packet_id FROM apc_log.packet_conflicts WHERE packet_id = ANY($1)
"""


async def test_the_same_bytes_several_times(attack: Attack) -> None:
    """Row 17: accepted and confirmed, it is not delivered again; refused, it is answered again."""
    open_ones = [attack.idea(to=AWAY) for _ in range(DOZENS)]
    refused = [attack.idea(to="nobody") for _ in range(DOZENS)]
    repeats = (TIMES - 1) * 2 * DOZENS
    async with attack.amid_load():
        for packet in (*open_ones, *refused):
            await attack.deployment.send(packet)
            for _ in range(TIMES - 1):
                await attack.put(packet)
        sleeper = await attack.come_back()

        async def are_answered() -> bool:
            return bool(attack.deployment.duplicates >= repeats // 2)

        await until(are_answered)
    await attack.end("the same bytes again")
    assert attack.injected == repeats
    assert set(sleeper.effects) == {packet.packet_id for packet in open_ones}


async def test_other_content_under_an_old_id(attack: Attack) -> None:
    """Row 18: the first one stands, the second is kept, and its sender is told."""
    first: dict[UUID, bytes] = {}
    second: dict[UUID, bytes] = {}
    async with attack.amid_load():
        for _ in range(DOZENS):
            packet = attack.idea()
            forged = attack.idea(packet_id=packet.packet_id)
            first[packet.packet_id], second[packet.packet_id] = seal(packet).packet_hash, seal(forged).packet_hash
            await attack.deployment.send(packet)
            await attack.put(forged)
        await until(attack.told("DUPLICATE_CONFLICT", first))
    await attack.end("other content under an old id", DUPLICATE_CONFLICT=DOZENS)
    rows = await attack.deployment.pool.fetch(HASHES, list(first))
    assert {row["packet_id"]: row["packet_hash"] for row in rows} == first
    conflicts = await attack.deployment.pool.fetch(CONFLICTS)
    assert {row["packet_id"]: (row["first_hash"], row["second_hash"]) for row in conflicts} == {
        packet_id: (first[packet_id], second[packet_id]) for packet_id in first
    }


async def test_captured_packets_again(attack: Attack, tmp_path: Path) -> None:
    """Row 28: once it has been handled, the same bytes with the same signature have no second effect."""
    attack.key = make_key(tmp_path / "red-1.pem")
    async with attack.amid_load():
        captured = [attack.idea() for _ in range(DOZENS)]
        for packet in captured:
            await attack.deployment.send(packet, **attack.signature(packet))
        await until(attack.are_in("ARCHIVED", [packet.packet_id for packet in captured], "blue-1"))
        for packet in captured:
            await attack.put(packet, **attack.signature(packet))
    await attack.end("a captured packet again")
    effects = attack.deployment.workers["blue-1"].effects
    assert {effects[packet.packet_id] for packet in captured} == {1}


async def test_captured_packets_under_new_ids(attack: Attack, tmp_path: Path) -> None:
    """Row 29: the signature covers the id, and without one it is no better."""
    attack.key = make_key(tmp_path / "red-1.pem")
    renamed = []
    async with attack.amid_load():
        for _ in range(DOZENS):
            packet = attack.idea()
            await attack.deployment.send(packet, **attack.signature(packet))
            for is_signed in (True, False):
                renamed.append(packet.model_copy(update={"packet_id": new_packet_id()}))
                await attack.put(renamed[-1], **(attack.signature(packet) if is_signed else {}))
        await until(attack.told("BAD_SIGNATURE", [packet.packet_id for packet in renamed]))
    await attack.end("a captured packet under a new id", BAD_SIGNATURE=2 * DOZENS)
    assert attack.handled.isdisjoint(packet.packet_id for packet in renamed)


async def test_the_user_id_of_another(attack: Attack) -> None:
    """Row 30: the broker closes the channel, and nothing arrives."""
    forged = [attack.idea() for _ in range(DOZENS)]
    async with AsyncExitStack() as resources, attack.amid_load():
        settings = BusSettings(amqp_url=SecretStr(attack.deployment.amqp_url))
        bus = await connect_rabbit(settings, purpose="forger")
        resources.push_async_callback(bus.close)
        for packet in forged:
            publication = attack.deployment.agents.publication(packet, user_id="agent.blue-1")
            with pytest.raises(PublishRefused, match=r"agent\.blue-1"):
                await bus.publish(publication)
            attack.injected += 1
    await attack.end("the user_id of another")
    assert not await attack.deployment.pool.fetch(TRACES, [packet.packet_id for packet in forged])


async def test_senders_that_are_not_who_they_say(attack: Attack, tmp_path: Path) -> None:
    """Row 31: no user_id, the name of an agent of another user, a signature of a key that nobody has registered."""
    key = make_key(tmp_path / "stranger.pem")
    unsigned = [attack.idea() for _ in range(DOZENS)]
    borrowed = [attack.idea("librarian") for _ in range(DOZENS)]
    badly_signed = [attack.idea() for _ in range(DOZENS)]
    async with attack.amid_load():
        await attack.register("librarian", broker_user="agent.librarian", change_id=uuid4())
        for packet in unsigned:
            await attack.put(packet, user_id=None)
        for packet in borrowed:
            await attack.put(packet)
        for packet in badly_signed:
            await attack.put(packet, headers={headers.SIGNATURE: key.sign(seal(packet))})
        await until(attack.told("BAD_SIGNATURE", [packet.packet_id for packet in badly_signed]))
    await attack.end("a sender that is another", SENDER_MISMATCH=2 * DOZENS, BAD_SIGNATURE=DOZENS)
    assert attack.handled.isdisjoint(packet.packet_id for packet in (*unsigned, *borrowed, *badly_signed))


async def test_copies_past_the_gate(attack: Attack) -> None:
    """Row 33: CC is refused; BCC, which the broker strips, leads nowhere."""
    copied, blind = ([attack.idea() for _ in range(DOZENS)] for _ in range(2))
    to_sentinel = ["idea.watch.sentinel", "apc.agent.sentinel.normal"]
    async with attack.amid_load():
        for packet in copied:
            await attack.put(packet, headers={"CC": to_sentinel})
        for packet in blind:
            await attack.send(packet, headers={"BCC": to_sentinel})
        await until(attack.told("SENDER_MISMATCH", [packet.packet_id for packet in copied]))
    await attack.end("CC and BCC", SENDER_MISMATCH=DOZENS)
    assert attack.handled.isdisjoint(packet.packet_id for packet in copied)
    assert attack.handled >= {packet.packet_id for packet in blind}
    assert attack.deployment.workers["sentinel"].effects.keys().isdisjoint(packet.packet_id for packet in blind)

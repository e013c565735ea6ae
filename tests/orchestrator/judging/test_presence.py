"""A packet of the presence session that comes twice is a repeat: nothing of it is logged again, as in any session."""

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.orchestrator.conftest import House
from tests.support.traffic.packets import make_packet

from apc_bus import headers
from apc_contracts import Packet, SignalPayload, parse_packet
from apc_contracts.payloads.by_type import HeartbeatPayload
from apc_contracts.vocabulary import PRESENCE_SESSION, PacketType, Signal
from apc_log.queries.agents import read_signs
from apc_log.session_loading import newest_presence
from apc_orchestrator.judging import memory
from apc_orchestrator.judging.memory import PRESENCE_KEPT, PresencePackets

CONFLICTS = "SELECT kind, code FROM apc_log.packet_conflicts ORDER BY seq"
ROWS = """
SELECT (SELECT count(*) FROM apc_log.agent_packets WHERE session_id = $1) AS packets,
       (SELECT count(*) FROM apc_log.packet_events WHERE session_id = $1) AS hops
"""


def beat(agent: str = "red-1", **fields: Any) -> Packet:
    return make_packet(agent, HeartbeatPayload(signal=Signal.HEARTBEAT), session_id=PRESENCE_SESSION, **fields)


def late() -> Packet:
    return beat(created_at=datetime.now(UTC) - timedelta(seconds=2), ttl_ms=1000)


async def logged(house: House, session_id: str = PRESENCE_SESSION) -> tuple[int, int, list[Any]]:
    """Return the packets and the hops of the session, and all conflicts."""
    await house.quiet()
    row = await house.pool.fetchrow(ROWS, session_id)
    return row["packets"], row["hops"], [tuple(one) for one in await house.pool.fetch(CONFLICTS)]


async def answers(house: House) -> list[tuple[PacketType, str | None]]:
    """Take everything out of the inbox of red-1; its types, and the refusal that each names."""
    packets = [parse_packet(delivery.message.body) for delivery in await house.read("red-1")]
    return [(one.packet_type, getattr(one.payload, "reason", None)) for one in packets]


async def test_a_heartbeat_that_comes_again_is_logged_once(house: House) -> None:
    sent, other = beat(), beat("blue-1")
    async with house.persister(), house.gate():
        await house.register()
        for one in (sent, sent, other, sent):
            await house.publish(one)
        assert await logged(house) == (2, 6, [])
        await house.publish(sent)
        assert await logged(house) == (2, 6, [])
    assert await answers(house) == [], "nobody asked"


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_the_gate_that_takes_over_knows_the_heartbeats_of_the_last_one(
    house: House, monkeypatch: pytest.MonkeyPatch, is_encrypted: bool
) -> None:
    monkeypatch.setenv("APC_ENCRYPT_BODIES", str(is_encrypted))
    monkeypatch.setenv("APC_SUBJECT_MASTER_KEY", b64encode(bytes(range(32))).decode())
    sent, refused = beat(), late()
    async with house.persister():
        async with house.gate(log_heartbeats="all"):
            await house.register()
            await house.publish(sent)
            await house.publish(refused)
            assert await logged(house) == (2, 4, [])
        async with house.gate(log_heartbeats="all"):
            await house.publish(sent)
            await house.publish(refused)
            assert await logged(house) == (2, 4, [])
            await house.publish(beat())
            assert await logged(house) == (3, 7, [])
    assert await answers(house) == [], "HEARTBEATs get no answer"


async def test_a_takeover_reads_no_more_than_may_be_repeated(house: House) -> None:
    sent = [beat() for _ in range(5)]
    async with house.persister(), house.gate(log_heartbeats="all"):
        await house.register()
        for one in sent:
            await house.publish(one)
        assert await logged(house) == (5, 15, [])
    newest = await newest_presence(house.pool, 0, 3)
    assert list(newest) == [one.packet_id for one in sent[2:]]
    assert PresencePackets.most_at_takeover(512, 100) == 912
    assert PresencePackets.most_at_takeover(512, 100_000) == PRESENCE_KEPT


async def test_who_asks_about_a_heartbeat_is_told_that_it_was_accepted(house: House) -> None:
    sent = beat()
    async with house.persister(), house.gate():
        await house.register()
        await house.publish(sent)
        await house.publish(sent, headers={headers.ASKS_VERDICT: True})
        assert await logged(house) == (1, 3, [])
    assert [kind for kind, _ in await answers(house)] == [PacketType.ACK]


@pytest.mark.parametrize("session_id", [PRESENCE_SESSION, "_other", "never-opened"])
async def test_what_was_refused_without_a_session_is_refused_again_and_logged_once(
    house: House, session_id: str
) -> None:
    sent = make_packet("red-1", SignalPayload(signal=Signal.SYNC), session_id=session_id)
    async with house.persister():
        async with house.gate():
            await house.register()
            for _ in range(2):
                await house.publish(sent)
            assert await logged(house, session_id) == (1, 1, [])
        async with house.gate():
            await house.publish(sent)
            assert await logged(house, session_id) == (1, 1, [])
    told = await answers(house)
    assert len(told) == 3 and len(set(told)) == 1 and told[0][0] is PacketType.NACK


async def test_a_heartbeat_that_says_the_same_under_its_id_is_a_repeat(house: House) -> None:
    sent = beat()
    same = beat(packet_id=sent.packet_id, keys=("else",))
    async with house.persister():
        async with house.gate():
            await house.register()
            await house.publish(sent)
            await house.publish(same)
            assert await logged(house) == (1, 3, [])
        async with house.gate():
            await house.publish(same)
            assert await logged(house) == (1, 3, [])


async def test_another_packet_under_a_taken_id_is_a_conflict(house: House) -> None:
    sent = beat()
    other = beat("blue-1", packet_id=sent.packet_id)
    async with house.persister():
        for at in (1, 2):
            async with house.gate():
                if at == 1:
                    await house.register()
                    await house.publish(sent)
                await house.publish(other)
                packets, hops, conflicts = await logged(house)
            assert (packets, hops) == (1, 3)
            assert conflicts == [("refused", "DUPLICATE_CONFLICT")] * at


@pytest.mark.parametrize("others", [{}, {"log_heartbeats": "all"}])
async def test_the_log_keeps_the_first_heartbeat_after_a_silence(
    house: House, monkeypatch: pytest.MonkeyPatch, others: dict[str, Any]
) -> None:
    """Those that say nothing new are signs of life all the same, and repeats of them repeats."""
    is_each = bool(others)
    first, *more = (beat() for _ in range(3))
    async with house.persister(), house.gate(**others):
        await house.register()
        for one in (first, *more, *more):
            await house.publish(one)
        assert await logged(house) == ((3, 9, []) if is_each else (1, 3, []))
        await house.publish(more[0], headers={headers.ASKS_VERDICT: True})
        assert await logged(house) == ((3, 9, []) if is_each else (1, 3, []))
        monkeypatch.setattr(memory, "ALIVE_WITHIN", timedelta(0))
        await house.publish(beat())
        assert await logged(house) == ((4, 12, []) if is_each else (2, 6, [])), "silent: it is news again"
    assert [kind for kind, _ in await answers(house)] == [PacketType.ACK]


async def test_a_refused_heartbeat_is_logged_and_no_sign_of_life(house: House) -> None:
    async with house.persister(), house.gate():
        await house.register()
        await house.publish(late())
        await house.publish(beat("blue-1"))
        await house.until(lambda: is_heard(house, "blue-1"))
        assert await logged(house) == (2, 4, [])
        assert set(await read_signs(house.pool)) == {"blue-1"}


async def test_the_gate_that_takes_over_knows_who_was_heard_of(house: House) -> None:
    async with house.persister():
        async with house.gate():
            await house.register()
            await house.publish(beat())
            await house.until(lambda: is_heard(house, "red-1"))
        async with house.gate():
            await house.publish(beat())
            await house.publish(beat("blue-1"))
            assert await logged(house) == (2, 6, []), "one of each agent"


async def is_heard(house: House, agent: str) -> bool:
    return agent in await read_signs(house.pool)

"""The database dies under a gate and comes back: what is in memory goes on, what is not waits and holds nobody up."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from tests.integration.conftest import House
from tests.support.log import kill_embedded
from tests.support.traffic import make_idea, make_packet, make_start, until

from apc_bus.topology import gate_queue
from apc_contracts import parse_packet
from apc_persister.database.embedded import start_embedded
from apc_persister.database.migrate import migrate

OTHER = "s-2"


@pytest.fixture
async def data() -> AsyncIterator[Path]:
    """Not pytest's folder: each run of pytest closes that one for other users, the server's among them."""
    path = Path(tempfile.mkdtemp(prefix="apc-embedded-"))
    yield path
    await (await start_embedded(path)).stop()
    shutil.rmtree(path)


@pytest.fixture
async def postgres_url(data: Path) -> str:
    """A server of this test's own, to be killed."""
    server = await start_embedded(data)
    await migrate(server.url)
    return server.url


async def open_two_sessions(house: House) -> None:
    """Sessions s-1 and s-2, in both of which nothing is on its way."""
    async with house.persister(), house.gate():
        await house.open_session()
        await house.agents.publish(make_start(OTHER))
        recipients = await house.pool.fetchval("SELECT recipients FROM apc_log.agent_packets LIMIT 1 OFFSET 1")
        for recipient in recipients:
            (signal_,) = await house.agents.receive(recipient, urgent=True)
            packet = parse_packet(signal_.message.body)
            assert packet.trace.session_id == OTHER
            await house.agents.report(recipient, [UUID(signal_.message.message_id)], session_id=OTHER)

        async def are_open() -> bool:
            return bool(
                await house.pool.fetchval("SELECT count(*) = 2 AND sum(open_deliveries) = 0 FROM apc_log.sessions")
            )

        await until(are_open)


@pytest.mark.long
@pytest.mark.parametrize("is_replaced", [False, True], ids=["the gate stays", "the gate is replaced"])
async def test_only_what_is_not_in_memory_waits(house: House, data: Path, is_replaced: bool) -> None:
    await open_two_sessions(house)
    known = make_packet("red-1", make_idea(), ("sentinel",), parent=house.opening)
    waits = make_packet("red-1", make_idea(), ("blue-1",), session_id=OTHER)
    behind = make_packet("red-1", make_idea(), ("sentinel",), parent=house.opening)
    async with house.persister():
        async with house.gate():
            await house.agents.publish(known)
            await house.agents.receive("sentinel")
            await until(house.is_logged(known.packet_id))
            kill_embedded(data)
            await house.agents.publish(waits, behind)
            (delivery,) = await house.agents.receive("sentinel")
            assert delivery.message.message_id == str(behind.packet_id), "its session is in memory"
            await house.agents.report("sentinel", [known.packet_id, behind.packet_id])
            if not is_replaced:
                await _comes_back(house, data, waits.packet_id, behind.packet_id)
        if is_replaced:
            async with house.gate():
                await _comes_back(house, data, waits.packet_id, behind.packet_id)
    assert (await house.agents.bus.depth(gate_queue(0))).messages == 0
    assert await house.count("agent_packets", "packet_type = 'IDEA'") == 3


async def _comes_back(house: House, data: Path, waited: UUID, behind: UUID) -> None:
    assert (await house.agents.bus.depth("apc.agent.blue-1.normal")).messages == 0
    await start_embedded(data)
    (delivery,) = await house.agents.receive("blue-1")
    assert delivery.message.message_id == str(waited)
    await until(house.has_come_to("ARCHIVED", behind, "sentinel"))
    await until(house.is_logged(waited))

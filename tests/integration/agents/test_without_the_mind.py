"""`apc worker` over RabbitMQ and Postgres where the package apc_minds cannot be imported."""

from pathlib import Path

import orjson
import pytest
from tests.integration.agents.worker_process import WorkerProcess
from tests.integration.conftest import House
from tests.support.account import ACCOUNT
from tests.support.traffic import make_idea, make_packet, until

from apc_agents import PostgresStateStore


@pytest.mark.long
async def test_a_worker_without_the_mind_handles_packets(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> None:
    settings = {ACCOUNT: str(tmp_path)}
    worker = WorkerProcess("mindless_agent:agent", amqp_vhost_url, postgres_url, tmp_path, **settings)
    sent = [make_packet("librarian", make_idea(intent), ("red-1",), parent=house.opening) for intent in ("a", "b")]
    async with house.persister(), house.gate():
        await house.open_session()
        await house.agents.publish(*sent)
        async with worker.running():
            for packet in sent:
                await until(house.has_come_to("ARCHIVED", packet.packet_id, "red-1"))
    stored = await PostgresStateStore(house.pool).load("red-1", sent[0].trace.session_id)
    assert stored is not None and orjson.loads(stored[0])["state"] == {"ideas": 2}
    assert len((tmp_path / "payments").read_text().splitlines()) == 2
    said = "ctx.memory: this needs the package apc_minds, which is not installed here"
    assert (tmp_path / "memory").read_text().splitlines() == [said, said]
    assert (tmp_path / "tasks").read_text().splitlines() == ["None", "None"]

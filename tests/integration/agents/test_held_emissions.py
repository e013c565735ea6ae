"""kill -9 of a worker that has saved its state and not said what it says about it, over a real broker and database."""

from pathlib import Path

import orjson
import pytest
from tests.integration.agents.worker_process import WorkerProcess
from tests.integration.conftest import House
from tests.support.traffic import make_idea, make_packet, until

SAID = """
SELECT convert_from(body_stored, 'UTF8') AS body FROM apc_log.agent_packets
WHERE sender_agent_id = 'red-1' AND packet_type = 'IDEA' ORDER BY seq
"""


@pytest.mark.long
async def test_what_a_handler_has_said_comes_once_whatever_is_killed(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> None:
    """Before the save, between save and publishing, between publishing and receipt; the last one with a new state."""
    worker = WorkerProcess("telling_agent:agent", amqp_vhost_url, postgres_url, tmp_path)
    triggers = [make_packet("librarian", make_idea(), ("red-1",), parent=house.opening) for _ in range(3)]
    async with house.persister(), house.gate():
        await house.open_session()
        await house.agents.publish(triggers[0])
        for point in ("worker.before_state", "worker.after_state", "worker.after_held"):
            await worker.dies_at(point)
        async with worker.running():
            for trigger in triggers[1:]:
                await house.agents.publish(trigger)
            for trigger in triggers:
                await until(house.has_come_to("ARCHIVED", trigger.packet_id, "red-1"))
    bodies = [orjson.loads(row["body"]) for row in await house.pool.fetch(SAID)]
    told = [(one["recipients"][0]["agent_id"], one["payload"]["intent"]) for one in bodies]
    assert told == [(to, f"step {step}") for step in (1, 2, 3) for to in ("blue-1", "sentinel")]
    assert await house.count("agent_packets", "verdict <> 'accepted'") == 0
    assert await house.count("packet_conflicts", "true") == 0

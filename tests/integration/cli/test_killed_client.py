"""A client that is killed while it waits for a session takes nothing away: the next one gets the end from the log."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.integration.conftest import House
from tests.support.apc_command import ApcCommand
from tests.support.traffic import make_packet, until

from apc_contracts import CommitmentLevel, DecisionPayload, Packet, SignalPayload, TaskSessionSpec
from apc_contracts.payloads.by_type import Payload
from apc_contracts.vocabulary import RunPhase, Signal

from .test_session_command import brief

CONNECTED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
DONE = DecisionPayload(
    decision_id="d",
    recommendation="ship",
    priority_distribution={},
    next_actions=(),
    commitment_level=CommitmentLevel.DONE,
)


@pytest.mark.long
async def test_another_client_gets_what_a_killed_one_waited_for(
    house: House, postgres_url: str, tmp_path: Path
) -> None:
    apc = ApcCommand(tmp_path)
    given = {"APC_AMQP_URL": house.settings.amqp_url.get_secret_value(), "APC_DATABASE_URL": postgres_url}
    spec = TaskSessionSpec(contract="task", members=("red-1",), deciders=("red-1",))
    house.opening = make_packet("librarian", SignalPayload(signal=Signal.START, session=spec), version="apc/1.1")
    session = house.opening.trace.session_id

    def work(agent: str, payload: Payload, to: str, parent: Packet) -> Packet:
        return make_packet(agent, payload, (to,), parent=parent, phase=RunPhase.EXECUTION)

    async with house.persister(), house.gate():
        await house.open_session()
        task = work("librarian", brief(), "red-1", house.opening)
        await house.agents.publish(task)
        await until(house.is_in("WORKING"))
        before = await house.pool.fetchval(CONNECTED)
        waiting = apc.start("session", "wait", session, given=given)

        async def is_connected() -> bool:
            return bool(await house.pool.fetchval(CONNECTED) > before)

        await until(is_connected)
        waiting.kill()
        await asyncio.to_thread(waiting.communicate)
        await house.agents.publish(work("red-1", DONE, "librarian", task))
        again = await asyncio.to_thread(apc, "session", "wait", session, given=given)
        (listed,) = json.loads((await asyncio.to_thread(apc, "session", "list", given=given)).stdout)
    assert waiting.returncode == -9
    assert again.returncode == 0, again.stderr
    assert listed["state"] == "CLOSED"

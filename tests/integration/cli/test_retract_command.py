"""`apc packet impact` and `apc packet retract`, as an operator runs them beside the services."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import House
from tests.support.apc_command import ApcCommand
from tests.support.traffic import make_idea, make_packet, until


@pytest.mark.long
async def test_a_packet_is_taken_back(house: House, postgres_url: str, tmp_path: Path) -> None:
    apc, given = (
        ApcCommand(tmp_path),
        {
            "APC_AMQP_URL": house.settings.amqp_url.get_secret_value(),
            "APC_DATABASE_URL": postgres_url,
        },
    )

    async def run(*arguments: str) -> Any:
        done = await asyncio.to_thread(apc, "packet", *arguments, "--json", given=given)
        return done, json.loads(done.stdout) if done.returncode == 0 else None

    ground = make_packet("red-1", make_idea(), ("blue-1",), parent=house.opening)
    child = make_packet("blue-1", make_idea(), ("red-1",), parent=ground)
    async with house.persister(), house.gate():
        await house.open_session()
        for packet in (ground, child):
            await house.agents.publish(packet)
        await until(house.is_logged(ground.packet_id, child.packet_id))
        _, before = await run("impact", str(ground.packet_id))
        assert [(row["packet_id"], row["is_stale"]) for row in before] == [(str(child.packet_id), False)]
        _, grounds = await run("impact", str(child.packet_id), "--rests-on")
        assert str(ground.packet_id) in [row["packet_id"] for row in grounds]
        _, shown = await run("retract", str(ground.packet_id), "--reason", "wrong", "--dry-run")
        assert shown == before and not await house.count("agent_packets", "packet_type = 'RETRACTION'")
        _, after = await run("retract", str(ground.packet_id), "--reason", "wrong")
        assert [(row["packet_id"], row["is_stale"]) for row in after] == [(str(child.packet_id), True)]
        again, _ = await run("retract", str(ground.packet_id), "--reason", "wrong")
        assert again.returncode == 2 and "NOT_RETRACTABLE at payload.target_packet_id" in again.stderr
        started, _ = await run(
            "retract", str(house.opening.trace.root_packet_id), "--reason", "wrong", "--session-id", "x"
        )
        assert started.returncode == 2 and "in session x" in started.stderr
    trace = await asyncio.to_thread(apc, "packet", "trace", "--packet-id", str(child.packet_id), "--json", given=given)
    (entry,) = json.loads(trace.stdout)
    assert entry["stale"]["because_packet_id"] == str(ground.packet_id)

"""Signatures where the deployment's contract asks for them: keys by command, real broker, gate and log writer."""

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pytest
from tests.integration.conftest import House
from tests.support.apc_command import ApcCommand
from tests.support.traffic import make_idea, make_packet, until
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, HandlerContext, Worker, WorkerSettings
from apc_agents.keys import AgentKey, make_key, read_key
from apc_bus import headers
from apc_client.registration import publish_changes
from apc_contracts import IdeaPayload, Packet, PacketType, load_contract, parse_packet, seal
from apc_contracts.identity.ids import new_packet_id


@pytest.fixture
async def running(house: House, tmp_path: Path) -> AsyncIterator[House]:
    """An open session under a contract that wants every IDEA signed."""
    document = load_contract().file.model_dump(mode="json", by_alias=True, exclude_none=True)
    document["required"]["signature"] = ["IDEA"]
    path = tmp_path / "contract.json"
    path.write_bytes(orjson.dumps(document))
    async with house.persister(), house.gate(contract=str(path)):
        await house.open_session()
        yield house


@pytest.fixture
async def key(running: House, tmp_path: Path) -> AgentKey:
    """The registered key of red-1."""
    key = make_key(tmp_path / "red-1.pem")
    await publish_changes(running.agents.bus, [registered(running, "red-1", key)], 1)
    return key


def registered(house: House, agent: str, *keys: AgentKey) -> Any:
    return house.agents.registration(agent, public_keys={key.key_id: key.public_key for key in keys})


def signed(key: AgentKey, packet: Packet) -> dict[str, str]:
    return {headers.SIGNATURE: key.sign(seal(packet))}


async def refusal_of(house: House, packet_id: UUID) -> Any:
    """Return the gate's answer to red-1 about a packet."""
    (delivery,) = await house.agents.receive("red-1", urgent=True)
    nack: Any = parse_packet(delivery.message.body)
    assert nack.payload.acked_packet_id == packet_id
    return nack.metadata["refusal"]


async def test_what_must_be_signed_is_refused_without_a_good_signature(running: House, key: AgentKey) -> None:
    send = running.agents.publish
    unsigned = make_packet("red-1", make_idea(), ("sentinel",), parent=running.opening)
    await send(unsigned)
    refused = await refusal_of(running, unsigned.packet_id)
    assert (refused["code"], refused["path"]) == ("BAD_SIGNATURE", "$")
    assert "must be signed" in refused["message"]
    foreign = make_packet("blue-1", make_idea(), ("sentinel",), parent=running.opening)
    await send(foreign, headers=signed(key, foreign))
    good = make_packet("red-1", make_idea(), ("sentinel",), parent=running.opening)
    await send(good, headers=signed(key, good))
    (delivery,) = await running.agents.receive("sentinel")
    assert delivery.message.message_id == str(good.packet_id), "neither the unsigned one nor one with another's key"
    await until(running.is_logged(good.packet_id))
    assert await running.count("agent_packets", "packet_type = 'IDEA'") == 1


async def test_a_captured_packet_is_of_no_use(running: House, key: AgentKey) -> None:
    sent = make_packet("red-1", make_idea(), ("sentinel",), parent=running.opening)
    captured = signed(key, sent)
    await running.agents.publish(sent, headers=captured)
    await running.agents.receive("sentinel")
    await running.agents.report("sentinel", [sent.packet_id])
    await until(running.has_come_to("ARCHIVED", sent.packet_id, "sentinel"))
    await running.agents.publish(sent, headers=captured)
    renamed = sent.model_copy(update={"packet_id": new_packet_id()})
    await running.agents.publish(renamed, headers=captured)
    refused = await refusal_of(running, renamed.packet_id)
    assert refused["code"] == "BAD_SIGNATURE" and "does not verify" in refused["message"]

    async def is_recorded() -> bool:
        return bool(await running.count("packet_conflicts") > 0)

    await until(is_recorded)
    assert await running.count("agent_packets", "packet_type = 'IDEA'") == 1, "the replay is a repeat: one row"
    verdicts = f"packet_id = '{sent.packet_id}' AND recipient = '' AND from_state = 'DRAFT'"
    assert await running.count("packet_events", verdicts) == 1, "judged once"
    conflicts = await running.pool.fetch("SELECT packet_id, code FROM apc_log.packet_conflicts")
    assert [tuple(row) for row in conflicts] == [(renamed.packet_id, "BAD_SIGNATURE")], "kept; it has taken no id"


@pytest.mark.long
async def test_an_operator_registers_the_key_of_a_worker(
    running: House, key: AgentKey, postgres_url: str, tmp_path: Path
) -> None:
    apc = ApcCommand(tmp_path)
    given = {"APC_AMQP_URL": running.settings.amqp_url.get_secret_value(), "APC_DATABASE_URL": postgres_url}

    async def run(*arguments: str) -> Any:
        return await asyncio.to_thread(apc, "key", *arguments, given=given)

    made = await run("new", "blue-1")
    assert made.returncode == 0, made.stderr
    file = tmp_path / ".apc" / "keys" / "blue-1.pem"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = await run("new", "blue-1")
    assert again.returncode == 2 and "File exists" in again.stderr
    assert (await run("show", "blue-1")).stdout == made.stdout
    known = await run("register", "blue-1")
    assert known.returncode == 0, known.stderr
    nobody = await run("register", "nobody", "--file", str(file))
    assert nobody.returncode == 2 and "not registered" in nobody.stderr

    agent = Agent("blue-1", role=ROLE, swarm="blue")

    @agent.on(PacketType.IDEA)
    async def answer(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        await ctx.emit(make_idea())

    asked = make_packet("red-1", make_idea(), ("blue-1",), parent=running.opening)
    bus, stop = await running.connect("worker"), asyncio.Event()
    settings = WorkerSettings(agent_key_file=file.with_name("{agent_id}.pem"))
    worker = asyncio.create_task(Worker(agent, bus, settings=settings).run(stop))
    await running.agents.publish(asked, headers=signed(key, asked))
    (delivery,) = await running.agents.receive("red-1")
    stop.set()
    await worker
    await bus.close()
    answered: Any = parse_packet(delivery.message.body)
    await until(running.is_logged(answered.packet_id))
    assert answered.trace.parent_packet_id == asked.packet_id
    row = await running.pool.fetchrow(
        "SELECT facts ->> 'signature' AS state, signature FROM apc_log.agent_packets WHERE packet_id = $1",
        answered.packet_id,
    )
    assert row is not None and tuple(row) == ("valid", read_key(file).sign(seal(answered)))

    replaced = await run("register", "blue-1", "--only", "--file", str(tmp_path / "red-1.pem"))
    assert replaced.returncode == 0, replaced.stderr
    keys = await running.pool.fetchval("SELECT public_keys FROM apc_log.agents WHERE agent_id = 'blue-1'")
    assert orjson.loads(keys) == {key.key_id: key.public_key}

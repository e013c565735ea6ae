"""A session of the contract `task` that speaks in MESSAGEs, by real workers: in one process, and over RabbitMQ."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import orjson
from pydantic import SecretStr
from tests.integration.conftest import House
from tests.support.traffic import AGENTS, until
from tests.support.traffic.packets import ROLE, SESSION

from apc_agents import Agent, HandlerContext, Worker, WorkerSettings
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_client.in_process import run_embedded
from apc_client.registration import register_schemas
from apc_contracts import (
    ORCHESTRATOR,
    CommitmentLevel,
    DecisionPayload,
    MessagePayload,
    Packet,
    PacketType,
    Signal,
    SignalPayload,
    TaskSessionSpec,
)

MESSAGES = """
SELECT sender_agent_id, verdict, convert_from(body_stored, 'UTF8') AS body FROM apc_log.agent_packets
WHERE packet_type = 'MESSAGE' ORDER BY judged_at, seq
"""
SCHEMAS: dict[str, dict[str, Any]] = {
    "pull-request/1": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    "finding/1": {
        "type": "object",
        "properties": {"file": {"type": "string"}, "line": {"type": "integer"}, "owner": {"type": ["string", "null"]}},
        "required": ["file", "line", "owner"],
        "additionalProperties": False,
    },
}
FINDING = {"file": "a.py", "line": 3, "owner": None}
DONE = DecisionPayload(
    decision_id="d-1",
    recommendation="merge it",
    priority_distribution={},
    next_actions=(),
    commitment_level=CommitmentLevel.DONE,
)


def _agent(agent_id: str, *rights: str) -> Agent:
    return Agent(agent_id, role=ROLE, swarm=AGENTS[agent_id][0], rights=rights)


def _members() -> list[Agent]:
    """red-1 asks blue-1 and ends the work with its answer."""
    lead, reader = _agent("red-1"), _agent("blue-1")

    @lead.on(PacketType.MESSAGE)
    async def take(message: Packet[MessagePayload], ctx: HandlerContext) -> None:
        if message.payload.schema_id == "finding/1":
            await ctx.emit(DONE, to=ORCHESTRATOR)
        else:
            await ctx.emit(message.payload, to="blue-1")

    @reader.on(PacketType.MESSAGE)
    async def answer(message: Packet[MessagePayload], ctx: HandlerContext) -> MessagePayload:
        return MessagePayload(schema_id="finding/1", content=FINDING, text="a.py, line 3")

    return [lead, reader]


def _opener() -> Agent:
    """Open the session and give red-1 its work: a MESSAGE begins it as a TASK_IR does."""
    opener = _agent("librarian", "operate")

    @opener.on_start
    async def begin(ctx: HandlerContext) -> None:
        spec = TaskSessionSpec(contract="task", members=("red-1", "blue-1"), deciders=("red-1",))
        start = await ctx.emit(SignalPayload(signal=Signal.START, session=spec), to=ORCHESTRATOR, session_id=SESSION)
        request = MessagePayload(schema_id="pull-request/1", content={"number": 4711})
        await ctx.emit(request, to="red-1", session_id=SESSION, parent=start)

    return opener


@asynccontextmanager
async def _at_work(house: House, *agents: Agent) -> AsyncIterator[None]:
    bus = await house.connect("agents")
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for agent in agents:
            worker = Worker(agent, bus, settings=WorkerSettings())
            tasks.create_task(worker.run(stop))
            await worker.ready.wait()
        yield
        stop.set()
    await bus.close()


async def _check(pool: asyncpg.Pool) -> None:
    """The session has ended, and the log holds the MESSAGEs as they were sent."""

    async def is_closed() -> bool:
        return bool(await pool.fetchval("SELECT state FROM apc_log.sessions") == "CLOSED")

    await until(is_closed)
    rows = await pool.fetch(MESSAGES)
    bodies: list[Mapping[str, Any]] = [orjson.loads(row["body"]) for row in rows]
    assert [(row["sender_agent_id"], row["verdict"]) for row in rows] == [
        ("librarian", "accepted"),
        ("red-1", "accepted"),
        ("blue-1", "accepted"),
    ]
    assert {body["protocol_version"] for body in bodies} == {"apc/1.1"}
    assert bodies[-1]["payload"] == {"schema": "finding/1", "content": FINDING, "text": "a.py, line 3"}


async def test_in_one_process(postgres_url: str, tmp_path: Path) -> None:
    settings = BusSettings(amqp_url=None, data_dir=tmp_path)
    async with run_embedded(settings, DatabaseSettings(database_url=SecretStr(postgres_url))) as system:
        await system.register_schemas(SCHEMAS)
        await system.start_agents([*_members(), _opener()])
        await _check(system.pool)


async def test_over_rabbitmq(house: House) -> None:
    async with house.persister(), house.gate():
        await house.agents.register()
        await register_schemas(house.agents.bus, house.pool, 1, SCHEMAS)
        async with _at_work(house, *_members(), _opener()):
            await _check(house.pool)

"""Agents in a FastStream application, and FastStream's dependencies in their handlers."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from faststream import Context, Depends, FastStream, TestApp
from faststream.rabbit import RabbitBroker, TestRabbitBroker
from pydantic import BaseModel
from tests.agents.conftest import Gate, MakeIdea, MakePacket, StageMaker
from tests.agents.waiting.pipelines import answer_to
from tests.agents.waiting.test_approvals import LEAD, POSITION, asks, ideas
from tests.support.traffic import until

from apc_agents import Agent, AgentError, AgentInvalid, AgentTestClient, HandlerContext, HandlerFailed, Team, message
from apc_agents.faststream import run_agents
from apc_agents.typed import content_of
from apc_bus.port import Delivery
from apc_bus.rabbit import RabbitBus, apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings, WorkerSettings
from apc_bus.topology import AgentQueues, agent_queue, build_topology, gate_queue
from apc_contracts import IdeaPayload, Packet, PacketType, parse_packet
from apc_contracts.payloads.by_type import AnswerOutcome

from .test_service import delivery_of

PATIENCE = 60.0
HOUR = timedelta(hours=1)


@message("riddle/1")
class Riddle(BaseModel):
    text: str


@message("solution/1")
class Solution(BaseModel):
    text: str


def desk() -> Agent:
    return Agent("desk", role="desk", swarm="support")


async def length(riddle: Riddle) -> int:
    return len(riddle.text)


async def test_a_handler_gets_what_its_dependencies_return() -> None:
    agent = desk()
    closed: list[str] = []

    async def connection(riddle: Riddle, size: Annotated[int, Depends(length)]) -> AsyncIterator[str]:
        yield f"{riddle.text} of {size}"
        closed.append(riddle.text)

    def plain(ctx: HandlerContext) -> str:
        return ctx.packet.packet_type

    @agent.on(Riddle)
    async def solve(
        riddle: Riddle,
        ctx: HandlerContext,
        opened: Annotated[str, Depends(connection)],
        kind: str = Depends(plain),
        *,
        word: str = Context(default="nothing"),
    ) -> Solution:
        assert closed == []
        return Solution(text=f"{opened}, {kind}, {word}")

    async with AgentTestClient(agent) as client:
        packet = await client.send(Riddle(text="egg"))
    assert packet is not None
    answer = content_of(packet, Solution)
    assert (answer.text, closed) == ("egg of 3, MESSAGE, nothing", ["egg"])


async def test_every_kind_of_handler_may_have_them() -> None:
    agent, begun = desk(), list[int]()

    def one() -> int:
        return 1

    @agent.on_start
    async def begin(ctx: HandlerContext, first: int = Depends(one)) -> None:
        begun.append(first)

    @agent.on_wake()
    async def wake(packet: Packet, ctx: HandlerContext, first: int = Depends(one)) -> None: ...

    @agent.on_substrate
    async def hear(packet: Packet, ctx: HandlerContext, first: int = Depends(one)) -> None: ...

    @agent.every("0 7 * * *")
    async def morning(tick: Any, ctx: HandlerContext, first: int = Depends(one)) -> None:
        begun.append(first + 1)

    async with AgentTestClient(agent) as client:
        await client.tick("morning")
    assert begun == [1, 2]


async def test_a_dependency_that_fails_fails_the_handler() -> None:
    agent = desk()

    def broken() -> int:
        raise ConnectionError("no route")

    @agent.on(Riddle)
    async def solve(riddle: Riddle, ctx: HandlerContext, got: int = Depends(broken)) -> None: ...

    async with AgentTestClient(agent) as client:
        with pytest.raises(HandlerFailed, match="ConnectionError"):
            await client.send(Riddle(text="egg"))


def test_other_parameters_are_refused_as_before() -> None:
    agent = desk()
    with pytest.raises(AgentInvalid, match="takes other parameters than expected"):

        @agent.on(Riddle)
        async def solve(riddle: Riddle, ctx: HandlerContext, flag: bool, got: int = Depends(length)) -> None: ...


async def test_a_handler_without_them_is_called_itself() -> None:
    agent = desk()

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None: ...

    (entry,) = agent._handlers.entries.values()
    assert entry.function is review


async def test_dependencies_are_closed_at_a_wait_and_resolved_again_after_it(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
    steps: list[str] = []

    async def connection() -> AsyncIterator[int]:
        steps.append("open")
        try:
            yield len(steps)
        finally:
            steps.append("closed")

    @agent.on(PacketType.IDEA)
    async def work(idea: Packet[IdeaPayload], ctx: HandlerContext, opened: int = Depends(connection)) -> None:
        approval = await ctx.ask("Go on?", to=LEAD, timeout=HOUR)
        steps.append(f"{approval.outcome.value} with {opened}")
        await ctx.emit(idea.payload, to="b-1")

    gate: Gate = await (await make_stage(agent)).start()
    await gate.deliver(make_packet(idea()), POSITION)
    await gate.until(lambda: len(asks(gate)) == 1 and "closed" in steps)
    assert steps == ["open", "closed"]
    await gate.deliver(answer_to(asks(gate)[0], AnswerOutcome.APPROVED), POSITION)
    await gate.until(lambda: len(ideas(gate)) == 1)
    assert steps == ["open", "closed", "open", "approved with 3", "closed"]


# Applications.


def test_an_application_needs_agents_each_once() -> None:
    agent = desk()
    with pytest.raises(AgentInvalid, match="needs an agent or a team"):
        run_agents()
    with pytest.raises(AgentInvalid, match="agent desk twice"):
        run_agents(agent, Team("t", agents=[agent], entry="desk"))


async def test_an_application_without_a_broker_for_them_says_how_to_mend_it(tmp_path: Path) -> None:
    lifespan = run_agents(desk(), settings=WorkerSettings(), bus_settings=BusSettings(amqp_url=None, data_dir=tmp_path))
    broker = RabbitBroker()
    async with TestRabbitBroker(broker):
        with pytest.raises(AgentError, match="set APC_AMQP_URL"):
            async with TestApp(FastStream(broker, lifespan=lifespan)):
                await asyncio.sleep(PATIENCE)


@pytest.fixture
def settings(amqp_vhost_url: str, tmp_path: Path) -> BusSettings:
    return BusSettings(amqp_url=amqp_vhost_url, data_dir=tmp_path)


@pytest.fixture
async def bus(settings: BusSettings) -> AsyncIterator[RabbitBus]:
    await apply_rabbit(
        settings.amqp_nodes[0], build_topology(1, [AgentQueues("sentinel-1", "hybrid", frozenset({PacketType.IDEA}))])
    )
    bus = await connect_rabbit(settings)
    yield bus
    await bus.close()


async def reviewed(packet: Packet, bus: RabbitBus) -> str:
    """Deliver an IDEA as the gate does; return the name of the method in the answer, once its outcome is reported."""
    collected: list[Delivery] = []
    async with asyncio.timeout(PATIENCE), bus.subscribe(gate_queue(0)) as inputs:
        await bus.publish(delivery_of(packet))
        while not any(b'"outcome"' in delivery.message.body for delivery in collected):
            for delivery in await inputs.receive():
                collected.append(delivery)
                await inputs.ack(delivery)
    packets = [parse_packet(one.message.body) for one in collected if one.message.type != "receipts"]
    (answer,) = [one for one in packets if one.packet_type is PacketType.IDEA]
    return answer.payload_as(IdeaPayload).method_id


async def test_agents_run_as_long_as_the_test_of_an_application(
    settings: BusSettings, bus: RabbitBus, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext, name: str = Context("named")) -> IdeaPayload:
        return idea.payload.model_copy(update={"method_id": name})

    broker = RabbitBroker()
    app = FastStream(broker, lifespan=run_agents(agent, settings=WorkerSettings(), bus_settings=settings))
    app.context.set_global("named", "by-the-application")
    async with asyncio.timeout(PATIENCE), TestRabbitBroker(broker), TestApp(app):
        assert await reviewed(make_packet(idea()), bus) == "by-the-application"


async def test_an_agent_that_fails_ends_its_application(settings: BusSettings, bus: RabbitBus) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on_start
    async def begin(ctx: HandlerContext) -> None:
        raise LookupError("no model")

    app = FastStream(RabbitBroker(settings.amqp_nodes[0]), lifespan=run_agents(agent, bus_settings=settings))
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(LookupError, match="no model"):
            await app.run()


@pytest.mark.long
async def test_faststream_run_drains_them_at_sigterm(
    settings: BusSettings, bus: RabbitBus, make_packet: MakePacket, idea: MakeIdea, tmp_path: Path
) -> None:
    process = await started(settings.amqp_nodes[0], tmp_path, APC_AMQP_URL=settings.amqp_nodes[0])
    try:
        assert await reviewed(make_packet(idea("m-7")), bus) == "within-m-7"
        process.send_signal(signal.SIGTERM)
        said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
    assert (process.returncode, b"shut down gracefully" in said) == (0, True), said.decode()
    assert (await bus.depth(agent_queue("sentinel-1", urgent=False))).messages == 0


@pytest.mark.long
async def test_faststream_run_leaves_at_sigterm_while_its_agents_wait(amqp_vhost_url: str, tmp_path: Path) -> None:
    process = await started(amqp_vhost_url, tmp_path, APC_AMQP_URL=amqp_vhost_url)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while b"worker_waits" not in await process.stdout.readline():
                assert process.returncode is None
            process.send_signal(signal.SIGTERM)
            await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0


RELOADED = '''
"""An application whose handler waits until the test lets it go on."""

import asyncio
import os
from pathlib import Path

from faststream import FastStream
from faststream.rabbit import RabbitBroker

from apc_agents import Agent, HandlerContext
from apc_agents.faststream import run_agents
from apc_contracts import IdeaPayload, Packet, PacketType

agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
FOLDER = Path(os.environ["APC_DATA_DIR"])


@agent.on(PacketType.IDEA)
async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload:
    (FOLDER / "begun").touch()
    while not (FOLDER / "goes-on").exists():
        await asyncio.sleep(0.05)
    return idea.payload.model_copy(update={"method_id": f"first-{idea.payload.method_id}"})


app = FastStream(RabbitBroker(os.environ["BROKER_OF_THE_APPLICATION"]), lifespan=run_agents(agent))
'''


@pytest.mark.long
async def test_faststream_run_with_reload_drains_them_and_starts_them_with_the_change(
    settings: BusSettings, bus: RabbitBus, make_packet: MakePacket, idea: MakeIdea, tmp_path: Path
) -> None:
    pytest.importorskip("watchfiles", reason="faststream run --reload needs watchfiles")
    url, program, kept = settings.amqp_nodes[0], tmp_path / "program", tmp_path / "kept"
    program.mkdir()
    kept.mkdir()
    (program / "reloaded.py").write_text(RELOADED)
    arguments = ("reloaded:app", "--reload", "--app-dir", str(program))
    process = await started(url, kept, *arguments, APC_AMQP_URL=url)
    try:
        first = asyncio.create_task(reviewed(make_packet(idea("m-1")), bus))
        await until((kept / "begun").exists)
        (program / "reloaded.py").write_text(RELOADED.replace("first-", "second-"))
        await says(process, b"Reloading")
        (kept / "goes-on").touch()
        assert await first == "first-m-1", "what was begun is ended by the program that began it"
        await says(process, b"started successfully")
        assert await reviewed(make_packet(idea("m-2")), bus) == "second-m-2"
        process.send_signal(signal.SIGTERM)
        said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # with the process that it has started for the application
    assert (process.returncode, b"shut down gracefully" in said) == (0, True), said.decode()
    assert (await bus.depth(agent_queue("sentinel-1", urgent=False))).messages == 0


async def says(process: asyncio.subprocess.Process, word: bytes) -> None:
    """Wait until a process has printed a line with this word."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        while word not in (line := await process.stdout.readline()):
            assert line, f"it ended without {word!r}"


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"APC_AMQP_URL": ""}, b"set APC_AMQP_URL"),
        ({"APC_ARTIFACTS_URL": "file:///proc/none"}, b"ArtifactError"),
    ],
    ids=["no-broker", "fails-at-once"],
)
async def test_faststream_run_ends_with_the_error_of_its_agents(
    amqp_vhost_url: str, tmp_path: Path, changes: dict[str, str], sentence: bytes
) -> None:
    process = await started(amqp_vhost_url, tmp_path, **{"APC_AMQP_URL": amqp_vhost_url} | changes)
    try:
        said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
    assert (process.returncode, sentence in said) == (1, True), said.decode()


async def started(broker_url: str, data_dir: Path, *arguments: str, **settings: str) -> asyncio.subprocess.Process:
    """Start the application, whose own broker is at `broker_url`; an empty setting is left out."""
    settings = {"BROKER_OF_THE_APPLICATION": broker_url, "APC_DATA_DIR": str(data_dir)} | settings
    arguments = arguments or ("tests.agents.running.faststream_app:app",)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "faststream", "run", *arguments),
        env={name: value for name, value in (os.environ | settings).items() if value},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )

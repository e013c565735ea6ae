"""A handler asks people, everything dies and starts again, somebody answers at a terminal, and the handler goes on."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.integration.agents.asking_agent import CHANGED, TYPED
from tests.integration.agents.worker_process import WorkerProcess
from tests.integration.conftest import House
from tests.support.account import ACCOUNT
from tests.support.apc_command import ApcCommand
from tests.support.traffic import make_packet, until

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_contracts import Packet, SignalPayload, TaskIrPayload
from apc_contracts.identity.registry import Kind
from apc_contracts.identity.registry_change import AgentAdded, encode_registry_change
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.payloads.task_ir import IrConstraint, IrHeader
from apc_contracts.vocabulary import RunPhase, Signal

ASKED = "SELECT packet_id FROM apc_log.packets WHERE packet #>> '{payload,signal}' = 'ASK' ORDER BY seq"
DEAD = """
SELECT packet_id FROM apc_log.packets WHERE packet #>> '{payload,signal}' = 'ANSWER' AND packet_id IN
    (SELECT packet_id FROM apc_log.packet_events WHERE to_state = 'DEAD_LETTERED')
"""
ANSWERS = """
SELECT packet #>> '{sender,agent_id}' AS by, packet #>> '{payload,answer,outcome}' AS outcome, verdict
FROM apc_log.packets WHERE packet #>> '{payload,signal}' = 'ANSWER' ORDER BY seq
"""


def start_task(session_id: str = "s-1", **spec: Any) -> Packet:
    fields: dict[str, Any] = {"contract": "task", "members": ("red-1",), "deciders": ("red-1",)} | spec
    payload = SignalPayload(signal=Signal.START, session=TaskSessionSpec(**fields))
    return make_packet("librarian", payload, session_id=session_id, version="apc/1.1")


def make_task(opening: Packet) -> Packet:
    header = IrHeader(task_id="task-1", run_id="run-1", swarm_id="library", dialect_id="d", dialect_hash="h")
    payload = TaskIrPayload(
        ir_header=header, objects=(IrConstraint(id="c", constraint_kind="QUALITY", expression="x"),)
    )
    session_id = opening.trace.session_id
    return make_packet(
        "librarian", payload, ("red-1",), parent=opening, phase=RunPhase.EXECUTION, session_id=session_id
    )


class Desk:
    """The house, its worker process, and a terminal."""

    def __init__(self, house: House, amqp_url: str, database_url: str, folder: Path) -> None:
        self.house = house
        self.folder = folder
        self.worker = WorkerProcess("asking_agent:agent", amqp_url, database_url, folder, **{ACCOUNT: str(folder)})
        self._apc = ApcCommand(folder)
        self._given = {"APC_AMQP_URL": amqp_url, "APC_DATABASE_URL": database_url}

    async def apc(self, *arguments: str) -> Any:
        """Run a command at another terminal."""
        return await asyncio.to_thread(self._apc, *arguments, given=self._given)

    async def add_person(self, person: str, role: str, via: str | None = None) -> None:
        """Register a person without a command."""
        users = (via or self.house.agents.bus.user,)
        change = AgentAdded(
            change_id=uuid4(), agent_id=person, broker_user=users[0], role=role, swarm_id="people",
            kind=Kind.PERSON, via=users,
        )  # fmt: skip
        body, bus = encode_registry_change(change), self.house.agents.bus
        message = Message(body, str(uuid4()), type=headers.TYPE_REGISTRY, user_id=bus.user)
        await bus.publish(Publication(RECEIPTS, "0", message))

    async def begin(self) -> Packet:
        """Register everybody and hand the task to the agent."""
        await self.house.agents.register()
        await self.add_person("alice", "release-manager")
        opening = start_task()
        task = make_task(opening)
        await self.house.agents.publish(opening, task)
        await until(self.house.is_logged(task.packet_id))
        return task

    async def asked(self) -> list[UUID]:
        return [row["packet_id"] for row in await self.house.pool.fetch(ASKED)]

    async def has_asked(self) -> bool:
        return bool(await self.asked())

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    @asynccontextmanager
    async def services(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.house.persister())
            await stack.enter_async_context(self.house.gate())
            yield

    async def ended(self) -> str:
        """Return what the handler has decided, once the session has closed."""
        await until(self.house.is_in("CLOSED"))
        statement = (
            "SELECT packet #>> '{payload,recommendation}' FROM apc_log.packets WHERE packet_type = 'DECISION' "
            "AND verdict = 'accepted'"
        )
        return str(await self.house.pool.fetchval(statement))


@pytest.fixture
def desk(house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path) -> Desk:
    return Desk(house, amqp_vhost_url, postgres_url, tmp_path)


@pytest.mark.long
async def test_an_approval_comes_after_everything_was_killed_and_started_again(desk: Desk) -> None:
    """The worker dies before and after each of its steps; effects happen once, and the state counts once."""
    async with desk.services():
        await desk.begin()
        await desk.worker.dies_at("worker.before_wait")
        assert await desk.asked() == []
        await desk.worker.dies_at("worker.after_wait")
        assert await desk.asked() == []
        await desk.worker.dies_at("worker.after_ask")
        await until(desk.has_asked)
    async with desk.services():
        (ask,) = await desk.asked()
        listed = json.loads((await desk.apc("approval", "list", "--json")).stdout)
        assert [(one["packet_id"], one["question"]) for one in listed] == [(str(ask), "Ship build 1?")]
        approved = await desk.apc("approval", "approve", str(ask), "--note", "go", "--yes")
        assert approved.stdout == f"question {ask} is approved by alice\n", approved.stderr
        late = await desk.apc("approval", "deny", str(ask))
        assert (late.returncode, desk.lines("shipped")) == (2, [])
        await desk.worker.dies_at("worker.before_continued")
        await desk.worker.dies_at("worker.after_continued")
        async with desk.worker.running():
            assert await desk.ended() == "approved by alice: go, builds 1"
    assert (len(desk.lines("builds")), len(desk.lines("shipped"))) == (1, 1)
    assert [tuple(row) for row in await desk.house.pool.fetch(ANSWERS)] == [("alice", "approved", "accepted")]


@pytest.mark.long
async def test_a_model_is_filled_in_at_a_terminal_while_nobody_runs(desk: Desk) -> None:
    """The worker waits, ends, and another process of it gets the model."""
    async with desk.services():
        await desk.begin()
        async with desk.worker.running(**{TYPED: "yes"}):
            await until(desk.has_asked)
    async with desk.services():
        (ask,) = map(str, await desk.asked())
        shown = json.loads((await desk.apc("approval", "show", ask)).stdout)
        assert shown["answer_schema"]["properties"]["share"]["format"] == "decimal"
        unsaid = await desk.apc("approval", "approve", ask, "--yes", "--field", "shared=1")
        assert "The question asks for: share (decimal, needed): Share: In percent.; day (date as" in unsaid.stderr
        bare = await desk.apc("approval", "approve", ask, "--yes")
        assert (bare.returncode, "payload.answer.content: this question is answered with fields" in bare.stderr) == (
            2,
            True,
        )
        given = ("--field", "day=2026-12-01", "--field", "channels=beta", "--field", "channels=stable")
        wrong = await desk.apc("approval", "approve", ask, "--yes", "--field", "share=101", *given)
        assert (wrong.returncode, wrong.stderr) == (2, "apc: answer.share: this value is to be at most 100\n")
        unfit = await desk.apc("approval", "approve", ask, "--yes", "--answer", '{"share": "5", "day": "2026-02-31"}')
        assert unfit.returncode == 2
        assert (
            "CONTENT_INVALID at payload.answer.content.day" in unfit.stderr
            and "Remedy: correct the field" in unfit.stderr
        )
        done = await desk.apc("approval", "approve", ask, "--yes", "--note", "go", "--field", "share=2.50", *given)
        assert done.stdout == f"question {ask} is approved by alice\n", done.stderr
        async with desk.worker.running(**{TYPED: "yes"}):
            said = await desk.ended()
    release = "Release(share=Decimal('2.50'), day=datetime.date(2026, 12, 1), channels=['beta', 'stable'])"
    assert said == f"approved by alice: go, builds 1, {release}"


async def test_who_registers_a_person_for_another_broker_user_is_told(desk: Desk) -> None:
    ours, alice = desk.house.agents.bus.user, ("agent", "add", "alice", "--person", "--role", "manager")
    async with desk.services():
        assert (await desk.apc(*alice, "--via", "desk", "--via", ours)).stderr == ""
        added = await desk.apc(*alice, "--via", "desk")
    assert (added.returncode, added.stdout) == (0, "person alice is registered\n")
    assert added.stderr == (
        "apc: --via: only the broker user desk may answer for alice, and the one in your APC_AMQP_URL is "
        f"{ours}. To answer from here, add --via {ours}\n"
    )


@pytest.mark.long
async def test_a_handler_that_has_changed_is_told_where_and_waits_for_its_old_code(desk: Desk) -> None:
    """Its dead letter does not halt the session, requeued too early neither: with the old code it goes on."""

    async def is_dead() -> bool:
        return bool(await desk.house.pool.fetchval(DEAD))

    async def has_said_so_twice() -> bool:
        told = "SELECT count(*) FROM apc_log.packets WHERE packet_type = 'ERROR' AND verdict = 'accepted'"
        dead = "SELECT count(*) FROM apc_log.packet_events WHERE to_state = 'DEAD_LETTERED'"
        return [await desk.house.pool.fetchval(one) for one in (told, dead)] == [2, 2]

    async with desk.services():
        await desk.begin()
        async with desk.worker.running():
            await until(desk.has_asked)
        (ask,) = await desk.asked()
        await desk.apc("approval", "approve", str(ask), "--note", "go", "--yes")
        async with desk.worker.running(**{CHANGED: "yes"}):
            await until(is_dead)
        error = await desk.house.pool.fetchval(
            "SELECT packet #>> '{payload,message}' FROM apc_log.packets WHERE packet_type = 'ERROR'"
        )
        assert await desk.house.is_in("WORKING")()
        assert (desk.lines("signatures"), desk.lines("shipped")) == ([], [])
        answer = await desk.house.pool.fetchval(DEAD)
        for running in ({CHANGED: "yes"}, None):
            requeued = await desk.apc("dead-letter", "requeue", str(answer))
            assert requeued.returncode == 0, requeued.stderr
            if running is not None:
                async with desk.worker.running(**running):
                    await until(has_said_so_twice)
                assert await desk.house.is_in("WORKING")()
        async with desk.worker.running():
            assert await desk.ended() == "approved by alice: go, builds 1"
    assert "ContinuationDiverged" in error and "was ctx.ask(" in error and "is now ctx.once(sign)" in error
    assert (len(desk.lines("builds")), len(desk.lines("shipped"))) == (1, 1)

"""Gate, log and worker in one process, with an agent that asks people, and people who answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
from tests.orchestrator.conftest import House, make_brief
from tests.orchestrator.judging.test_task_sessions import open_task
from tests.support.traffic.packets import make_packet

from apc_agents import Agent, AskTimeout, HandlerContext, PostgresStateStore, Role, Worker, WorkerSettings
from apc_bus import headers
from apc_bus.in_memory import InMemoryBus
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_client.sending import answer_packet
from apc_contracts import DecisionPayload, Packet, PacketType, TaskIrPayload
from apc_contracts.identity.registry import Kind, Registration
from apc_contracts.identity.registry_change import AgentAdded, AgentRevoked, encode_registry_change
from apc_contracts.payloads.by_type import AnswerOutcome
from apc_contracts.vocabulary import CommitmentLevel, RunPhase
from apc_log.queries.questions import QuestionRow, list_questions

MANAGERS = Role("release-manager")
HOUR = timedelta(hours=1)


def done(text: str) -> DecisionPayload:
    return DecisionPayload(
        decision_id="d", recommendation=text, priority_distribution={}, next_actions=(),
        commitment_level=CommitmentLevel.DONE,
    )  # fmt: skip


def asking(text: str = "Ship?", **options: Any) -> Agent:
    """Return an agent that asks, and decides with the answer."""
    agent = Agent("red-1", role="role", swarm="red")
    asked: dict[str, Any] = {"to": MANAGERS, "timeout": HOUR} | options

    @agent.on(PacketType.TASK_IR)
    async def ship(task: Packet[TaskIrPayload], ctx: HandlerContext) -> DecisionPayload:
        ctx.state["asked"] = ctx.state.get("asked", 0) + 1
        try:
            approval = await ctx.ask(text, **asked)
        except AskTimeout:
            return done("nobody answered")
        return done(f"{approval.outcome} by {approval.by}: {approval.note}, asked {ctx.state['asked']}")

    return agent


def hold_receipts(bus: InMemoryBus, may_report: asyncio.Event) -> None:
    """Publish no message of receipts before `may_report` is set."""
    publish = bus.publish

    async def publish_later(publication: Publication) -> None:
        if publication.message.type == headers.TYPE_RECEIPTS:
            await may_report.wait()
        await publish(publication)

    bus.publish = publish_later  # type: ignore[method-assign]  # only the time of publishing changes


class Office:
    """The house with people in it."""

    def __init__(self, house: House) -> None:
        self.house = house

    async def change(self, change: AgentAdded | AgentRevoked) -> None:
        message = Message(
            encode_registry_change(change), str(change.change_id), type=headers.TYPE_REGISTRY, user_id="operator"
        )
        await self.house.client("operator").publish(Publication(RECEIPTS, "0", message))
        await self.house.quiet()

    async def hire(self, person: str, role: str = "release-manager", *via: str) -> None:
        users = via or ("web",)
        await self.change(
            AgentAdded(
                change_id=uuid4(),
                agent_id=person,
                broker_user=users[0],
                role=role,
                swarm_id="people",
                kind=Kind.PERSON,
                via=users,
            )
        )

    async def begin(self, **spec: Any) -> Packet:
        """Open a task and hand it to red-1."""
        opening = await self.house.open(open_task(**spec))
        await self.hire("alice")
        task = make_packet("librarian", make_brief(), ("red-1",), phase=RunPhase.EXECUTION, parent=opening)
        await self.house.publish(task)
        return task

    async def question(self) -> QuestionRow:
        """Wait for the open question."""
        found: list[QuestionRow] = []

        async def is_asked() -> bool:
            found[:] = await list_questions(self.house.pool)
            return bool(found)

        await self.house.until(is_asked)
        return found[0]

    async def answer(
        self, person: str, question: QuestionRow, outcome: str = "approved", user: str = "web", **change: Any
    ) -> tuple[str, str | None, str | None]:
        """Send an answer; return its verdict, and why it was refused."""
        packet = await self.send_answer(person, question, outcome, user, **change)
        await self.house.quiet()
        row = await self.house.pool.fetchrow(
            "SELECT verdict, refusal ->> 'code' AS code, refusal ->> 'path' AS path FROM apc_log.agent_packets "
            "WHERE packet_id = $1 UNION ALL SELECT 'refused', code, NULL FROM apc_log.packet_conflicts "
            "WHERE packet_id = $1",
            packet.packet_id,
        )
        assert row is not None, "the answer was not judged"
        return row["verdict"], row["code"], row["path"]

    async def send_answer(
        self, person: str, question: QuestionRow, outcome: str = "approved", user: str = "web", **change: Any
    ) -> Packet:
        """Send an answer, whether anybody judges it or not."""
        role = change.pop("role", "release-manager")
        registration = Registration(person, user, role, change.pop("swarm", "people"), kind=Kind.PERSON)
        content = change.pop("content", None)
        packet = answer_packet(question, registration, AnswerOutcome(outcome), "go", content=content)
        packet = packet.model_copy(update=change)
        await self.house.publish(packet, user=user)
        return packet

    @asynccontextmanager
    async def worker(
        self, agent: Agent, pool: asyncpg.Pool | None = None, may_report: asyncio.Event | None = None, **stores: Any
    ) -> AsyncIterator[None]:
        """A worker of the agent, with its state in the database.

        With `may_report` its receipts wait until that is set, and ride on nothing.
        """
        bus, stop = self.house.broker.connect(f"agent.{agent.agent_id}"), asyncio.Event()
        settings = WorkerSettings(shards=1, database_url=None)
        if may_report is not None:
            hold_receipts(bus, may_report)
            settings = WorkerSettings(shards=1, database_url=None, outcome_linger=timedelta(0))
        worker = Worker(agent, bus, settings=settings, states=PostgresStateStore(pool or self.house.pool), **stores)
        task = asyncio.create_task(worker.run(stop))
        try:
            yield
        finally:
            stop.set()
            await task
            await bus.close()

    async def halted(self) -> str:
        """Wait until the session has halted; return why."""

        async def is_halted() -> bool:
            return await self.house.state() == "HALTED"

        await self.house.until(is_halted)
        return str(await self.house.pool.fetchval("SELECT document ->> 'halt_reason' FROM apc_log.sessions"))

    async def decided(self) -> str:
        async def is_closed() -> bool:
            return await self.house.state() in ("CLOSED", "HALTED")

        await self.house.until(is_closed)
        return str(
            await self.house.pool.fetchval(
                "SELECT packet #>> '{payload,recommendation}' FROM apc_log.packets WHERE packet_type = 'DECISION'"
            )
        )

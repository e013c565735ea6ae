"""A deployment with an agent that waits: for timers, for its schedule, for people."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import BaseModel
from tests.faults.deployment import Deployment
from tests.faults.killing import timing_agent
from tests.faults.service import Service
from tests.support.traffic import ScriptedAgents, make_packet, until

from apc_agents.scheduling import PostgresScheduleStore, Tick
from apc_agents.typed import document_of, payload_of
from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS, agent_queue
from apc_contracts import SignalPayload, new_packet_id
from apc_contracts.identity.registry import Kind
from apc_contracts.identity.registry_change import AgentAdded, SchemaAdded, encode_registry_change
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.vocabulary import RunPhase, Signal

CAST = {"librarian": ("library", ("operate",)), "red-1": ("red", ("schedule",))}
PATH = {"PYTHONPATH": str(Path(__file__).parents[3])}
PEOPLE = {"alice": timing_agent.MANAGERS, "mallory": "intern"}
PENDING = "SELECT count(*) FROM apc_log.sessions, jsonb_each(document -> 'work' -> 'wakes')"
KNOWN = "SELECT count(*) FROM apc_log.registry_events"
RESULTS = """
SELECT session_id, packet #> '{payload,result,content}' AS result, packet #>> '{payload,recommendation}' AS said
FROM apc_log.packets WHERE packet_type = 'DECISION' AND verdict = 'accepted'
"""
ENDED = "SELECT count(*) FROM apc_log.sessions WHERE state IN ('CLOSED', 'HALTED')"
HALTED = "SELECT count(*) FROM apc_log.sessions WHERE state = 'HALTED'"
STARTED = {"persister": "persister_started", "orchestrator": "shard_taken", "worker": "worker_started"}
"""What a process writes when it may be stopped."""
MODELS = (timing_agent.Sleep, timing_agent.Slept, timing_agent.Errand, timing_agent.Ran)


class TimingHouse:
    """Processes, and the sessions that a test opens in them."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.pool = deployment.pool
        self._agents = ScriptedAgents(deployment.bus, CAST)

    async def gate(self, **settings: str) -> Service:
        return await self.deployment.serve("orchestrator", **settings)

    async def persister(self, **settings: str) -> Service:
        return await self.deployment.serve("persister", **settings)

    async def worker(self, **settings: str) -> Service:
        name = "tests.faults.killing.timing_agent:agent"
        return await self.deployment.work(name, **PATH, **settings)

    @asynccontextmanager
    async def opener(self) -> AsyncIterator[None]:
        """Somebody takes what the opener of the sessions is told."""
        async with self.deployment.workers["librarian"].working():
            yield

    async def register(self) -> None:
        """Register agents, people and schemas, and wait until the log has them."""
        await self._agents.register()
        for person, role in PEOPLE.items():
            await self._change(
                AgentAdded(
                    change_id=uuid4(),
                    agent_id=person,
                    broker_user=self.user,
                    role=role,
                    swarm_id="people",
                    kind=Kind.PERSON,
                    via=(self.user,),
                )
            )
        for schema_id, document in ((vars(one)["__apc_schema__"], document_of(one)) for one in MODELS):
            await self._change(SchemaAdded(change_id=uuid4(), schema_id=schema_id, document=document))
        tick = document_of(Tick)
        await self._change(SchemaAdded(change_id=uuid4(), schema_id="tick/1", document=tick))
        wanted = len(CAST) + len(PEOPLE) + len(MODELS) + 1

        async def is_known() -> bool:
            return bool(await self.pool.fetchval(KNOWN) >= wanted)

        await until(is_known, 60)

    @property
    def user(self) -> str:
        """The broker user of everybody."""
        return self.deployment.bus.user

    async def open(self, session_id: str, content: BaseModel) -> None:
        """Open a session in which red-1 decides, and give it its work; each is published until it is confirmed."""
        spec = TaskSessionSpec(contract="task", members=("red-1",), deciders=("red-1",))
        payload = SignalPayload(signal=Signal.START, session=spec)
        start = make_packet("librarian", payload, cast=CAST, session_id=session_id, version="apc/1.1")
        work = make_packet(
            "librarian",
            payload_of(content),
            ("red-1",),
            cast=CAST,
            parent=start,
            session_id=session_id,
            phase=RunPhase.EXECUTION,
            version="apc/1.1",
            ttl_ms=3_600_000,
        )
        await self.deployment.send(start)
        await self.deployment.send(work)

    async def schedule_since(self, ago: timedelta) -> None:
        """Leave the schedule as a worker would that was there until `ago`."""
        store, schedules = PostgresScheduleStore(self.pool), timing_agent.agent.schedules
        await store.register("red-1", schedules, datetime.now(UTC) - ago)

    async def pending(self) -> int:
        """Return how many timers stand in the log."""
        return int(await self.pool.fetchval(PENDING) or 0)

    async def ended(self, count: int, seconds: float = 60) -> None:
        """Wait until so many sessions have ended."""

        async def are_ended() -> bool:
            return bool(await self.pool.fetchval(ENDED) >= count)

        try:
            await until(are_ended, seconds)
        except TimeoutError:
            said = "".join(f"\n{one.name}: {one.output}" for one in self.deployment.services)
            found = await self.pool.fetch("SELECT state, count(*) FROM apc_log.sessions GROUP BY state")
            raise AssertionError(f"{[tuple(row) for row in found]}{said}") from None

    async def drained(self) -> None:
        """Wait until the newest processes run and nothing is left in the agent's inbox."""
        newest = {one.name: one for one in self.deployment.services}
        for name, event in STARTED.items():
            await until(newest[name].says(event), 60)

        async def is_empty() -> bool:
            bus = self.deployment.bus
            return not any([(await bus.depth(agent_queue("red-1", urgent))).messages for urgent in (True, False)])

        await until(is_empty)

    async def results(self) -> list[Any]:
        """Return session, result and words of every DECISION."""
        return list(await self.pool.fetch(RESULTS))

    async def stop(self, *, persister: bool = True) -> None:
        """Stop every process that runs, the persister last, when it has committed everything."""
        running = [one for one in self.deployment.services if one.process.returncode is None]
        for name in ("worker", "orchestrator"):
            for service in running:
                if service.name == name:
                    await service.stop()
        logging = [one for one in running if one.name == "persister" and persister]
        if logging:
            await self.deployment.commit_everything()
        for service in logging:
            await service.stop()

    async def _change(self, change: AgentAdded | SchemaAdded) -> None:
        body = encode_registry_change(change)
        message = Message(body, str(new_packet_id()), type=headers.TYPE_REGISTRY, user_id=self.user)
        await self.deployment.bus.publish(Publication(RECEIPTS, "0", message))


def sized(name: str, default: int) -> int:
    """Return a size of a run from the environment."""
    return int(os.environ.get(f"APC_TEAM_{name}", default))

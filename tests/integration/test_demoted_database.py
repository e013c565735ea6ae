"""Each store at a database that was demoted: it waits, readiness says so, and it goes on at the new primary."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from tests.agents.scheduling.conftest import SEVEN, make_agent
from tests.minds.tasks.test_task_store import added
from tests.support.failover.demotion import Demoted, Switch, by_way_of, place_of
from tests.support.log import LogBench, ScriptedGate, packet_entry
from tests.support.waiting import until

from apc_agents import Agent, HandlerContext, PostgresStateStore, WorkerSettings
from apc_agents.effects import EffectClaim, EffectId, EffectSettled, PostgresEffectStore
from apc_agents.errors import StateStale, StateUnavailable
from apc_agents.handling.state import StateCache
from apc_agents.running.worker import Worker
from apc_agents.scheduling import PostgresScheduleStore
from apc_bus.artifacts import open_artifacts
from apc_bus.database import open_pool, problems_of
from apc_bus.in_memory import InMemoryBroker
from apc_bus.settings import BusSettings, OrchestratorSettings
from apc_bus.topology import AgentQueues, build_topology
from apc_minds.memory import ConversationContext, MemoryUnavailable, PostgresMemoryStore, StaleRevision
from apc_minds.tasks.postgres import PostgresTaskStore
from apc_orchestrator.service import Orchestrator

Act = Callable[[asyncpg.Pool], Coroutine[Any, Any, None]]


async def claim_effect(pool: asyncpg.Pool) -> None:
    place = EffectId(uuid4(), "payer-1", "charge")
    claim = EffectClaim(
        effect_id=place,
        claim_id=uuid4(),
        session_id="s-1",
        worker="w",
        expires_at=datetime.now(UTC) + timedelta(days=1),
    )
    await PostgresEffectStore(pool).claim(claim, timedelta(minutes=1))
    made = await PostgresEffectStore(pool).record(place, claim.claim_id, {"receipt": 1})
    assert made is not None
    assert made.result == {"receipt": 1}


async def save_state(pool: asyncpg.Pool) -> None:
    states = StateCache(PostgresStateStore(pool), "payer-1")
    document = await states.open("s-1")
    document.value["paid"] = 7
    await states.save(document, (uuid4(), 1))
    assert (await StateCache(PostgresStateStore(pool), "payer-1").open("s-1")).value == {"paid": 7}


async def keep_memory(pool: asyncpg.Pool) -> None:
    memory = PostgresMemoryStore(pool, is_patient=True)
    await memory.store_conversation("s-1", "u-1", ConversationContext(session_id="s-1", revision=0))
    assert await memory.save_agent_state("m-1", "s-1", "k", {"a": 1}, 0) == 1
    await memory.store_agent_state("m-1", "s-1", "l", 2)
    assert await memory.get_all_agent_states("m-1", "s-1") == {"k": {"a": 1}, "l": 2}


async def add_task(pool: asyncpg.Pool) -> None:
    store = PostgresTaskStore(pool)
    task = await added(store)
    assert (await store.get(task.task_id)).task_id == task.task_id


async def register_schedule(pool: asyncpg.Pool) -> None:
    store = PostgresScheduleStore(pool)
    await store.register("clerk-1", make_agent().schedules, SEVEN)
    assert await store.fired_until("clerk-1", "report") == SEVEN


ACTS: tuple[Act, ...] = (claim_effect, save_state, keep_memory, add_task, register_schedule)


@pytest.mark.parametrize("act", ACTS)
async def test_a_store_waits_and_goes_on(demoted: Demoted, memory_broker: InMemoryBroker, act: Act) -> None:
    pool = await demoted.pool()
    worker = Worker(
        Agent("payer-1", role="r", swarm="s"),
        memory_broker.connect("agents"),
        settings=WorkerSettings(database_url=None),
        database=pool,
    )
    acting = asyncio.create_task(act(pool))
    await until(lambda: "the database is away" in "".join(worker.problems))
    assert not acting.done()
    await demoted.restore()
    await acting
    await until(lambda: problems_of(pool) == [])
    assert "the database is away" not in "".join(worker.problems)


async def test_the_address_leads_elsewhere_and_connections_stay(demoted: Demoted) -> None:
    """The address leads to the new primary already: the first refusal is the last one."""
    pool = await demoted.pool(max_size=4)
    await demoted.restore()
    await asyncio.gather(*(act(pool) for act in ACTS))
    assert problems_of(pool) == []


async def test_a_store_that_does_not_wait_says_what_is_wrong(demoted: Demoted) -> None:
    pool = await demoted.pool()
    place = EffectId(uuid4(), "payer-1", "charge")
    with pytest.raises(StateUnavailable, match="read-only transaction"):
        await PostgresEffectStore(pool, is_patient=False).withdraw(place, uuid4())
    with pytest.raises(MemoryUnavailable, match="the server is read-only"):
        await PostgresMemoryStore(pool).store_agent_state("payer-1", "s-1", "k", 1)


async def test_the_log_writer_waits_and_goes_on(demoted: Demoted, memory_broker: InMemoryBroker) -> None:
    pool = await demoted.pool(max_size=4)
    gate = ScriptedGate(memory_broker.connect("orchestrator"))

    bench = LogBench(gate, memory_broker.connect("persister"), pool)
    async with bench.writing() as persister:
        writer = persister.writers[0]
        await gate.open()
        await gate.log([packet_entry()])
        await until(lambda: writer.counts.failures > 1)
        assert "the log of shard 0 is not written" in persister.problems
        assert "the database is away" in "".join(persister.problems)
        await demoted.restore()
        await until(lambda: writer.counts.messages == 2)
        await until(lambda: persister.is_ready)
    assert await bench.numbers() == [1]


async def test_the_gate_says_that_its_database_is_away(
    demoted: Demoted, memory_broker: InMemoryBroker, tmp_path: Path
) -> None:
    pool = await demoted.pool()
    artifacts = open_artifacts(BusSettings(amqp_url=None, data_dir=tmp_path))
    orchestrator = Orchestrator(OrchestratorSettings(), memory_broker.connect("orchestrator"), pool, artifacts)
    assert "the database is away" not in "".join(orchestrator.problems)
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await pool.execute("CREATE TABLE one ()")
    assert "the database is away: cannot execute CREATE TABLE" in "".join(orchestrator.problems)


@pytest.fixture
async def lossy(postgres_url: str) -> AsyncIterator[tuple[Switch, asyncpg.Pool]]:
    """A pool, and the line to its server, which can lose the answer to a commit."""
    async with Switch.open(place_of(postgres_url)) as line:
        pool = await open_pool(by_way_of(postgres_url, line.port), max_size=1)
        yield line, pool
        pool.terminate()


async def test_a_compare_and_set_whose_commit_was_not_seen(lossy: tuple[Switch, asyncpg.Pool]) -> None:
    """Repeated, it finds what it wrote, and not that somebody else was faster; what others wrote is still stale."""
    line, pool = lossy
    memory, hasty = PostgresMemoryStore(pool, is_patient=True), PostgresMemoryStore(pool)
    line.loses = (b"COMMIT", 0)
    with pytest.raises(MemoryUnavailable):
        await hasty.save_agent_state("m-1", "s-1", "k", {"a": 1}, 0)
    with pytest.raises(StaleRevision):  # the attempt was committed: the fault happens
        await hasty.save_agent_state("m-1", "s-1", "k", {"a": 1}, 0)

    line.loses = (b"COMMIT", 0)
    assert await memory.save_agent_state("m-1", "s-1", "k", {"a": 2}, 1) == 2
    assert line.loses is None, "not exercised"
    line.loses = (b"COMMIT", 0)
    talk = ConversationContext(session_id="s-1", revision=0, metadata={"summary": "x"})
    await memory.store_conversation("s-1", "u-1", talk)
    assert line.loses is None, "not exercised"
    with pytest.raises(StaleRevision):
        await memory.save_agent_state("m-1", "s-1", "k", {"a": 2}, 1)


async def test_a_state_whose_commit_was_not_seen_names_its_delivery(lossy: tuple[Switch, asyncpg.Pool]) -> None:
    """The worker reads it again, and finds the delivery handled."""
    line, pool = lossy
    states, delivery = StateCache(PostgresStateStore(pool), "payer-1"), (uuid4(), 1)
    document = await states.open("s-1")
    document.value["paid"] = 7
    line.loses = (b"COMMIT", 0)
    with pytest.raises(StateStale):
        await states.save(document, delivery)
    states.forget("s-1")
    again = await states.open("s-1")
    assert again.was_handled(delivery)
    assert again.value == {"paid": 7}


async def test_an_effect_whose_settling_was_not_seen(lossy: tuple[Switch, asyncpg.Pool]) -> None:
    line, pool = lossy
    store = PostgresEffectStore(pool)
    for key in ("pay-1", "pay-2"):
        claim = EffectClaim(
            effect_id=EffectId(uuid4(), "payer-1", key),
            claim_id=uuid4(),
            session_id="s-1",
            worker="w",
            expires_at=datetime.now(UTC) + timedelta(days=1),
        )
        await store.claim(claim, timedelta(0))
        line.loses = (key.encode(), 1)  # they look at the effect first
        if key == "pay-1":
            assert (await store.settle(claim.effect_id, 7, "operator")).result == 7
            with pytest.raises(EffectSettled):
                await store.settle(claim.effect_id, 8, "operator")
        else:
            await store.release(claim.effect_id)
            assert await store.get(claim.effect_id) is None
        assert line.loses is None, "not exercised"


async def test_an_on_start_function_whose_commit_was_not_seen(
    lossy: tuple[Switch, asyncpg.Pool], memory_broker: InMemoryBroker
) -> None:
    line, pool = lossy
    agent, runs = Agent("starter-1", role="r", swarm="s"), list[int]()

    @agent.on_start
    async def begin(ctx: HandlerContext) -> None:
        ctx.state["starts"] = ctx.state.get("starts", 0) + 1
        runs.append(ctx.state["starts"])

    memory_broker.apply(build_topology(agents=[AgentQueues("starter-1", "s")]))
    worker = Worker(
        agent,
        memory_broker.connect("agents"),
        settings=WorkerSettings(database_url=None),
        states=PostgresStateStore(pool),
        database=pool,
    )
    line.loses = (b"COMMIT", 1)  # that of the read is the first
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    await until(worker.ready.is_set)
    stop.set()
    await running
    assert runs == [1, 2]

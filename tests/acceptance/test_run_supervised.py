"""The same job over RabbitMQ with a process for each role, every process killed once in mid-run."""

import asyncio
import signal
import subprocess
from collections.abc import Awaitable, Callable
from functools import partial

import asyncpg
import orjson
import psutil
import pytest
from tests.support.apc_command import ApcCommand, FinishedRun, read_summary, statements_of
from tests.support.log import replay_everything
from tests.support.waiting import until

from apc_automl.swarm.briefs import LIBRARIAN
from apc_minds.context import ContextSession, MemoryContextStore, SessionConfig
from apc_minds.memory import PostgresMemoryStore

ROLES = (
    "serve orchestrator",
    "serve persister",
    "roles:librarian",
    "roles:sentinel",
    "roles:builder_linear",
    "roles:builder_trees",
    "roles:builder_neighbours",
)
REACHED = "SELECT max(generation) FROM apc_log.sessions"
OPEN = "SELECT coalesce(sum(open_deliveries), 0) FROM apc_log.sessions"
GAPS = """
SELECT count(*) AS entries, count(DISTINCT seq) AS numbers, max(seq) - min(seq) + 1 AS span FROM (
    SELECT seq FROM apc_log.agent_packets UNION ALL SELECT seq FROM apc_log.packet_events
    UNION ALL SELECT seq FROM apc_log.packet_lineage UNION ALL SELECT seq FROM apc_log.coordination_events
    UNION ALL SELECT seq FROM apc_log.packet_conflicts UNION ALL SELECT seq FROM apc_log.registry_events
    UNION ALL SELECT seq FROM apc_log.log_events
) AS log
"""
EVALUATIONS = """
SELECT round, generation, sender_swarm_id, count(*) AS packets FROM apc_log.agent_packets
WHERE packet_type = 'EVAL' AND verdict = 'accepted' AND sender_agent_id LIKE 'builder-%'
  AND run_phase IN ('DISCOVERY', 'REFINEMENT', 'CONVERGENCE')
GROUP BY round, generation, sender_swarm_id
"""
AUDITS = """
SELECT bodies.packet -> 'metadata' -> 'context' AS context
FROM apc_log.agent_packets packets JOIN apc_log.packets bodies USING (shard, seq)
WHERE packets.sender_agent_id = 'librarian' AND packets.channel = 'INTRA_AGENT'
  AND packets.verdict = 'accepted' AND packets.recipients = '{librarian}' ORDER BY seq DESC
"""
SWARMS = 3


@pytest.mark.faults
@pytest.mark.timeout(590)
async def test_a_run_survives_the_death_of_every_process(
    apc: ApcCommand, amqp_vhost_url: str, postgres_url: str, finished_run: FinishedRun
) -> None:
    """It ends as if nothing had happened: everybody has said what the run in one process says.

    Source: docs/specification/agents.md section 7.
    """
    servers = {"APC_AMQP_URL": amqp_vhost_url, "APC_DATABASE_URL": postgres_url}
    running = apc.start(
        "automl", "run", "--generations", "13", "--budget-seconds", "500", "--out", "out", given=servers
    )
    pool = await asyncpg.create_pool(postgres_url, min_size=1, max_size=1)
    try:
        for number, role in enumerate(ROLES):
            await _until(running, partial(_has_reached, pool, number + 1))
            _child(running, role).send_signal(signal.SIGKILL)
        _, said = await asyncio.to_thread(running.communicate, timeout=550)

        assert running.returncode == 0, said[-3000:]
        summary = read_summary(apc.folder / "out")
        assert summary["is_promoted"]
        assert summary["model_hash"] == finished_run.summary["model_hash"]
        undisturbed = statements_of(finished_run.apc, finished_run.summary["run_id"])
        assert statements_of(apc, summary["run_id"], servers) == undisturbed
        assert any("context compressed" in statement for statement in undisturbed), "the narrative is told alike too"
        await _check_log(pool)
        await _check_narrative(pool, summary["run_id"])
        await replay_everything(pool)
    finally:
        await pool.close()
        _end(running)


async def _check_log(pool: asyncpg.Pool) -> None:
    assert await pool.fetchval(OPEN) == 0
    (gaps,) = await pool.fetch(GAPS)
    assert gaps["entries"] == gaps["numbers"] == gaps["span"]
    counted = await pool.fetch(EVALUATIONS)
    assert [row["packets"] for row in counted] == [1] * 13 * SWARMS


async def _check_narrative(pool: asyncpg.Pool, session_id: str) -> None:
    """Each generation is noted once, though the librarian died; the log has what was folded, memory has it whole."""
    store = MemoryContextStore(PostgresMemoryStore(pool), LIBRARIAN)
    session = await ContextSession.open(session_id, store=store, config=SessionConfig(max_tokens=100_000))
    contexts = [orjson.loads(row["context"]) for row in await pool.fetch(AUDITS)]
    told = {one["id"]: one["before"] for context in contexts for one in context["folded"]}
    folded = {resource_id: fold.digest for resource_id, fold in session.window.folded.items()}
    assert folded and folded.items() <= told.items()
    assert (await session.expand()).missing == ()
    noted = [turn.metadata["note"] for turn in session.window.all_turns()]
    assert [note for note in noted if str(note).startswith("generation/")] == [f"generation/1/{n}" for n in range(13)]
    assert len(noted) == len(set(map(str, noted)))


async def _has_reached(pool: asyncpg.Pool, generation: int) -> bool:
    try:
        reached = await pool.fetchval(REACHED)
    except asyncpg.UndefinedTableError:
        return False
    return reached is not None and reached >= generation


async def _until(running: subprocess.Popen[str], holds: Callable[[], Awaitable[bool]]) -> None:
    async def holds_while_it_runs() -> bool:
        assert running.poll() is None, running.stderr.read() if running.stderr else ""
        return await holds()

    await until(holds_while_it_runs, 500, pause_seconds=0.05)


def _child(running: subprocess.Popen[str], role: str) -> psutil.Process:
    children = psutil.Process(running.pid).children()
    return next(child for child in children if role in " ".join(child.cmdline()))


def _end(running: subprocess.Popen[str]) -> None:
    if running.poll() is None:
        children = psutil.Process(running.pid).children()
        running.kill()
        for child in children:
            child.kill()
    running.communicate()

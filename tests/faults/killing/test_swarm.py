"""The reference swarm over RabbitMQ, its processes killed in mid-run: it ends as if nothing had happened."""

import asyncio
import random
import signal
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path

import asyncpg
import psutil
import pytest
from tests.support.apc_command import ApcCommand, read_summary, statements_of
from tests.support.log import replay_everything
from tests.support.traffic import until

SERVICES = ("serve orchestrator", "serve persister")
AGENTS = (
    "roles:librarian",
    "roles:sentinel",
    "roles:builder_linear",
    "roles:builder_trees",
    "roles:builder_neighbours",
)
GENERATIONS = 13
ROUNDS = 3
REACHED = "SELECT max(generation) FROM apc_log.sessions"
DOUBLED = "SELECT count(*) - count(DISTINCT packet_id) FROM apc_log.agent_packets"
CONFLICTS = "SELECT kind, reason FROM apc_log.packet_conflicts"
OPEN = "SELECT sum(open_deliveries) FROM apc_log.sessions"


ARGUMENTS = ("automl", "run", "--generations", str(GENERATIONS), "--budget-seconds", "390", "--out", "out")
Outcome = tuple[str, Counter[str]]
"""Of a run: the hash of the promoted model, and what everybody said."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The same run in one process."""
    apc = ApcCommand(tmp_path_factory.mktemp("undisturbed"))
    run = apc(*ARGUMENTS, timeout_seconds=400)
    assert run.returncode == 0, run.stderr[-3000:]
    summary = read_summary(apc.folder / "out")
    return summary["model_hash"], statements_of(apc, summary["run_id"])


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_every_process_killed(
    seed: int, amqp_vhost_url: str, postgres_url: str, tmp_path: Path, undisturbed: Outcome
) -> None:
    chance = random.Random(seed)
    roles = chance.sample(SERVICES + AGENTS, k=len(SERVICES + AGENTS))
    generations = sorted(chance.choices(range(GENERATIONS - 1), k=len(roles)))
    kills = list(zip(generations, roles, strict=True))
    assert await run_killing(kills, amqp_vhost_url, postgres_url, tmp_path) == undisturbed


async def run_killing(kills: list[tuple[int, str]], amqp_url: str, database_url: str, folder: Path) -> Outcome:
    """Return a run in which each (generation, role) is killed with -9; the model's hash, and what everybody said."""
    apc, servers = ApcCommand(folder), {"APC_AMQP_URL": amqp_url, "APC_DATABASE_URL": database_url}
    running = apc.start(*ARGUMENTS, given=servers)
    pool = await asyncpg.create_pool(database_url, min_size=1, max_size=1)
    try:
        for generation, role in kills:
            await until(partial(has_reached, pool, running, generation), 200)
            child(running, role).send_signal(signal.SIGKILL)
        _, said = await asyncio.to_thread(running.communicate, timeout=600)
        assert running.returncode == 0, said[-3000:]
        assert await pool.fetchval(DOUBLED) == 0
        assert await pool.fetchval(OPEN) == 0
        assert await pool.fetch(CONFLICTS) == []
        await replay_everything(pool)
    finally:
        await pool.close()
        end(running)
    summary = read_summary(folder / "out")
    assert summary["state"] == "CLOSED"
    return summary["model_hash"], statements_of(apc, summary["run_id"], servers)


async def has_reached(pool: asyncpg.Pool, running: subprocess.Popen[str], generation: int) -> bool:
    """Return whether the run has come so far. Fails when it has ended."""
    assert running.poll() is None, running.stderr.read() if running.stderr else ""
    reached = await pool.fetchval(REACHED)
    return reached is not None and reached >= generation


def child(running: subprocess.Popen[str], role: str) -> psutil.Process:
    """Return the process of a role."""
    children = psutil.Process(running.pid).children()
    return next(one for one in children if role in " ".join(one.cmdline()))


def end(running: subprocess.Popen[str]) -> None:
    """Kill what a failed test leaves behind."""
    if running.poll() is None:
        children = psutil.Process(running.pid).children(recursive=True)
        running.kill()
        for one in children:
            one.kill()
    running.communicate()

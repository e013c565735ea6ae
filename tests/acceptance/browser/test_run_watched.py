"""A run over RabbitMQ, a process for each role, watched in a browser from its start to its promoted model."""

import asyncio
import signal
import subprocess
from datetime import timedelta

import asyncpg
import pytest
from pydantic import SecretStr
from tests.support.apc_command import ApcCommand, read_summary
from tests.support.log.tampering import disable_guards
from tests.support.waiting import until
from tests.support.web.browser import browse, require_page, served

from apc_bus.settings import PersisterSettings
from apc_contracts import load_contract
from apc_persister.evidence.checkpoint import load_signer
from apc_web.app import make_app
from apc_web.guard import AccessGuard
from apc_web.live import Feed
from apc_web.pool import open_reader, open_state_reader
from apc_web.route_services import Services

TOKEN = "token-of-the-tests"
SEED = "3"
"""With it a TRANSFER is refused."""
RUN = "SELECT run_id FROM apc_log.sessions WHERE step > 2"
CHANGE = """
UPDATE apc_log.agent_packets SET sender_role = 'intern' WHERE packet_type = 'TRANSFER' AND verdict = 'refused'
"""


@pytest.mark.long
@pytest.mark.journey
@pytest.mark.timeout(590)
async def test_a_run_is_watched_to_its_promoted_model(apc: ApcCommand, amqp_vhost_url: str, postgres_url: str) -> None:
    require_page()
    servers = {"APC_AMQP_URL": amqp_vhost_url, "APC_DATABASE_URL": postgres_url}
    running = apc.start(
        "automl", "run", "--generations", "13", "--budget-seconds", "500", "--seed", SEED, "--out", "out", given=servers
    )
    pool = await asyncpg.create_pool(postgres_url, min_size=1, max_size=1)
    try:
        run_id = await _run_id(running, pool)
        await _watch(apc, postgres_url, pool, run_id)
        _, said = await asyncio.to_thread(running.communicate, timeout=100)
        assert running.returncode == 0, said[-3000:]
    finally:
        await pool.close()
        if running.poll() is None:
            running.send_signal(signal.SIGTERM)
            await asyncio.to_thread(running.communicate, timeout=60)
    summary = read_summary(apc.folder / "out")
    assert (summary["run_id"], summary["is_promoted"]) == (run_id, True)


async def _run_id(running: "subprocess.Popen[str]", pool: asyncpg.Pool) -> str:
    async def found() -> str | None:
        assert running.poll() is None, running.stderr.read() if running.stderr else ""
        run_id: str | None = await pool.fetchval(RUN)
        return run_id

    await until(found, 300)
    return str(await found())


async def _watch(apc: ApcCommand, url: str, pool: asyncpg.Pool, run_id: str) -> None:
    contract, wait = load_contract(), timedelta(seconds=10)
    key = next(apc.folder.rglob("log-key.pem")).read_text()
    key_of = load_signer(PersisterSettings(log_key=SecretStr(key))).public_key
    reader, state = await open_reader(url, wait), await open_state_reader(url, wait)
    services = Services(
        pool=reader,
        state=state,
        contract=contract,
        key_of=key_of,
        feed=Feed(reader, contract),
        is_embedded=False,
        why_no_acts="the run is only watched",
    )

    async def change_the_row() -> None:
        await disable_guards(pool)
        await pool.execute(CHANGE)

    async with served(AccessGuard(make_app(services), TOKEN)) as address:
        given = {"url": address, "token": TOKEN, "run": run_id, "key": str(key_of(0))}
        await browse("watch.mjs", given, {"change the row": change_the_row})
    reader.terminate()
    state.terminate()

"""An input that kills the process of each gate that takes it: it alone is set aside, and the shard goes on."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.integration.conftest import House
from tests.integration.gate.deadly_gate import POISON
from tests.support.traffic import make_idea, make_packet, until

from apc_bus.last_resort import ATTEMPTS
from apc_contracts import Packet
from apc_contracts.wire.parsing import seal

ROOT = Path(__file__).parents[3]
CONFLICTS = "SELECT kind, raw FROM apc_log.packet_conflicts"
ACCEPTED = """
SELECT packet_id FROM apc_log.agent_packets
WHERE sender_agent_id = 'librarian' AND packet_type = 'IDEA' AND verdict = 'accepted'
"""
MANY = 25
MOST_DEATHS = 12


class DeadlyGates:
    """Gate processes, one after the other, each begun where the last one has died."""

    def __init__(self, amqp_url: str, database_url: str, folder: Path) -> None:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("APC_")}
        self._folder = folder
        self._environment = inherited | {
            "APC_AMQP_URL": amqp_url,
            "APC_DATABASE_URL": database_url,
            "APC_DATA_DIR": str(folder / "data"),
            "PYTHONPATH": str(ROOT),
        }
        self.deaths = 0

    async def serve_until(self, is_over: Callable[[], Awaitable[bool]]) -> None:
        while self.deaths <= MOST_DEATHS:
            async with self._running() as process:
                ends = [asyncio.create_task(process.wait()), asyncio.create_task(until(is_over, None))]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for end in ends:
                    end.cancel()
                await asyncio.gather(*ends, return_exceptions=True)
                if process.returncode is None:
                    return
                assert process.returncode == -signal.SIGKILL, self._output.read_text()[-3000:]
                self.deaths += 1
        raise AssertionError("the gates go on dying")

    @property
    def _output(self) -> Path:
        return self._folder / "gate.log"

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[asyncio.subprocess.Process]:
        with self._output.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.integration.gate.deadly_gate",
                cwd=ROOT, env=self._environment, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_an_input_that_kills_the_process_of_the_gate_is_set_aside_alone(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> None:
    intents = [str(number) for number in range(MANY)]
    sent = [idea(house, intent) for intent in (*intents, POISON, *intents)]
    poison = sent[MANY]
    gates = DeadlyGates(amqp_vhost_url, postgres_url, tmp_path)

    async def is_over() -> bool:
        return len(await house.pool.fetch(ACCEPTED)) == 2 * MANY and bool(await house.pool.fetch(CONFLICTS))

    async with house.persister():
        async with house.gate():
            await house.open_session()
        await house.agents.bus.publish_all([house.agents.publication(one) for one in sent[:MANY]])
        # Alone in its message: a bundle is taken apart, and its parts are taken one after the other.
        await house.agents.publish(poison)
        await house.agents.publish(*sent[MANY + 1 :])
        await gates.serve_until(is_over)
        rows = [tuple(row) for row in await house.pool.fetch(CONFLICTS)]
        accepted = [row["packet_id"] for row in await house.pool.fetch(ACCEPTED)]
    assert rows == [("unjudgeable", seal(poison).body)]
    assert sorted(accepted) == sorted(one.packet_id for one in sent if one is not poison), "each once"
    # With the others, with the others again, and then alone.
    assert gates.deaths == 2 + ATTEMPTS


@pytest.mark.faults
async def test_a_part_of_a_bundle_costs_no_other_part(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> None:
    sent = [idea(house, intent) for intent in ("a", "b", POISON, "c", "d")]
    gates = DeadlyGates(amqp_vhost_url, postgres_url, tmp_path)

    async def is_over() -> bool:
        return len(await house.pool.fetch(ACCEPTED)) == 4 and bool(await house.pool.fetch(CONFLICTS))

    async with house.persister():
        async with house.gate():
            await house.open_session()
        await house.agents.publish(*sent)
        await gates.serve_until(is_over)
        rows = [tuple(row) for row in await house.pool.fetch(CONFLICTS)]
    assert rows == [("unjudgeable", seal(sent[2]).body)]


def idea(house: House, intent: str) -> Packet:
    return make_packet("librarian", make_idea(intent), ("red-1",), parent=house.opening)

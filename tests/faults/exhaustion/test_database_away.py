"""Matrix row 15: the database is away for minutes. The bus goes on until its queues are full, then it says so."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.faults.conftest import Deploy
from tests.faults.deployment import Deployment
from tests.support.log import kill_embedded
from tests.support.servers import PrivateNode
from tests.support.traffic import until

from apc_bus.topology import gate_queue, log_queue
from apc_persister.database.embedded import start_embedded

AWAY_SECONDS = 300
CONFIRMED_BEFORE, MORE = 100, 300
BOUND = 60
"""Messages in the queue of the gate and in that of the log: small, so that minutes suffice to fill them."""
IN_FLIGHT = 40
"""The bound of a quorum queue is soft: it stands until its leader has told the publishers' channels."""
Record = Callable[[str, Any, float], None]


@pytest.mark.faults
@pytest.mark.timeout(900)
async def test_the_database_is_away_for_minutes(
    rabbit_node: PrivateNode, own_data: Path, own_database: str, deploy: Deploy, record: Record
) -> None:
    """What is confirmed meanwhile waits in bounded queues; what is beyond them is refused, and is sent again."""
    async with deploy(rabbit_node.url(), own_database) as deployment:
        limits = f'{{"max-length": {BOUND}}}'
        await asyncio.to_thread(rabbit_node.ctl, "set_policy", "small", r"^apc\.(gate|log)\.0$", limits)
        await deployment.open_session()
        for name in ("persister", "orchestrator"):
            await deployment.serve(name)
        async with deployment.working(), deployment.sending(random.Random(15)):
            await until(deployment.confirms.reach(CONFIRMED_BEFORE))
            before = deployment.confirms.count
            await asyncio.to_thread(kill_embedded, own_data)
            away_since, peaks = monotonic(), {gate_queue(0): 0, log_queue(0): 0}

            async def were_minutes() -> bool:
                for queue in peaks:
                    peaks[queue] = max(peaks[queue], (await deployment.bus.depth(queue)).messages)
                return monotonic() - away_since >= AWAY_SECONDS

            await until(were_minutes, 2 * AWAY_SECONDS, pause_seconds=1)
            meanwhile, refused = deployment.confirms.count - before, deployment.confirms.failures
            await until(refuses_more(deployment))
            await start_embedded(own_data)
            repaired_at = monotonic()
            await until(deployment.confirms.reach(MORE), 120)
        async with deployment.working():
            await deployment.drain(patience=120)
        await deployment.check(fenced_allowed=True)
        print(f"\nwithout a database: {meanwhile} confirmed, {refused} refused or unknown; longest queues {peaks}")
        assert meanwhile, "not exercised: nothing was confirmed without a database"
        assert max(peaks.values()) >= BOUND, f"not exercised: no queue was full: {peaks}"
        assert max(peaks.values()) <= BOUND + IN_FLIGHT, peaks
        record(f"the database away for {AWAY_SECONDS} s", deployment, repaired_at)


def refuses_more(deployment: Deployment) -> Callable[[], Awaitable[bool]]:
    """Return a condition: senders are still told that their packets are not taken."""
    before = deployment.confirms.failures

    async def holds() -> bool:
        return bool(deployment.confirms.failures > before)

    return holds

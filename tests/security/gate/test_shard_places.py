"""Nobody drives an orchestrator out of its shard by saying that another one, whose it is, stands by."""

from uuid import uuid4

import pytest
from tests.orchestrator.conftest import House

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_orchestrator.judging.inputs import PROBE_BODY
from apc_orchestrator.shard import shard_server

EPOCH = "SELECT max(epoch) FROM apc_log.shard_epochs"


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_nobody_but_an_orchestrator_says_that_one_stands_by(
    house: House, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """Without the guard it leaves, finds nobody there, and takes the shard again with the next epoch."""
    if not is_guarded:
        monkeypatch.setattr(shard_server, "standby_of", lambda probe, _: probe.headers.get(headers.STANDBY))
    said = {headers.STANDBY: "gate-0"}
    probe = Message(PROBE_BODY, str(uuid4()), type=headers.TYPE_RECEIPTS, user_id="agent.red-1", headers=said)
    async with house.persister(), house.gate(orchestrator="gate-1", orchestrators=2) as gate:
        await house.register()
        await house.client("agent.red-1").publish(Publication(RECEIPTS, "0", probe))
        if not is_guarded:

            async def is_taken_again() -> bool:
                return bool(await house.pool.fetchval(EPOCH) == 2)

            await house.until(is_taken_again)
        await house.quiet()
        assert await house.pool.fetchval(EPOCH) == (1 if is_guarded else 2)
        assert gate.shards[0].is_active

"""The contract file is changed for the worse, and for another, while a load runs (matrix row 44)."""

import random
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import orjson
import pytest
from tests.faults.deployment import Deployment
from tests.faults.hostile.attacks import DOZENS
from tests.support.traffic import make_idea, make_packet, until

from apc_contracts import load_contract

pytestmark = pytest.mark.faults
CONFIRMED_BEFORE = 40
HASHES = "SELECT DISTINCT contract_hash FROM apc_log.agent_packets"
Change = Callable[[dict[str, Any]], object]
HOLES: dict[str, Change] = {
    "limits.nodes": lambda document: document["limits"].update(nodes="many"),
    "machines": lambda document: document["machines"].pop("packet_lifecycle"),
    "drift_checks[0].guard": lambda document: document["drift_checks"][0].update(guard="generation >="),
}


def contract_file(path: Path, change: Change) -> str:
    """Return a file with the packaged contract, changed."""
    document = load_contract().file.model_dump(mode="json", by_alias=True, exclude_none=True)
    change(document)
    path.write_bytes(orjson.dumps(document))
    return str(path)


async def test_the_contract_is_changed_under_load(deployment: Deployment, record: Callable[..., None]) -> None:
    """With a hole in it no gate starts, and the one that runs goes on. An open session keeps its own contract."""
    path = deployment.folder / "contract.json"
    await deployment.open_session()
    await deployment.serve("persister")
    gate = await deployment.serve("orchestrator")
    async with deployment.working():
        async with deployment.sending(random.Random(44)):
            await until(deployment.confirms.reach(CONFIRMED_BEFORE))
            for place, change in HOLES.items():
                broken = await deployment.serve("orchestrator", APC_CONTRACT=contract_file(path, change))
                assert await broken.process.wait() == 2 and place in broken.output, broken.output
            assert gate.process.returncode is None
        await deployment.settle()
        await gate.stop()
        assert await hashes(deployment) == {load_contract().hash}
        other = contract_file(path, lambda document: document["limits"].update(held_packets=10))
        repaired_at = monotonic()
        await deployment.serve("orchestrator", APC_CONTRACT=other)
        late = [make_packet("red-1", make_idea("work"), ("blue-1",), parent=deployment.opening) for _ in range(DOZENS)]
        for packet in late:
            await deployment.send(packet)
        await deployment.drain()
    await deployment.check()
    told = deployment.workers["red-1"].nacks
    assert not {packet.packet_id for packet in late} & told.keys()
    assert load_contract(Path(other)).hash not in await hashes(deployment)
    record("a contract with a hole, another contract", deployment, repaired_at, injected=len(HOLES) + DOZENS)


async def hashes(deployment: Deployment) -> set[bytes]:
    """Return the contracts under which the log's packets were judged."""
    return {row["contract_hash"] for row in await deployment.pool.fetch(HASHES)}

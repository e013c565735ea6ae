"""kill -9 of a sender around the confirm of what it publishes (matrix rows 1 and 2)."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import UUID

import orjson
import pytest
from tests.faults.deployment import Deployment
from tests.faults.matrix import ROOT
from tests.support.traffic import Journal, until

from apc_contracts import seal

LOAD = 120
CONFIRMS_BEFORE = range(2, 10)
"""Within the load: eight are in flight, and one confirm may answer for all of them."""
PUBLISHES_BEFORE = range(3, 12)
"""Within the load: what is published at once shares a bundle, so it has at least fifteen publishes."""
ROUNDS = 20
PROGRAM = str(Path(__file__).parent / "journaling_sender.py")
Record = Callable[[str, Any, float], None]


class Sending:
    """A load, and the processes that send it one after the other from one journal."""

    def __init__(self, deployment: Deployment, chance: random.Random) -> None:
        self._deployment = deployment
        self._load = deployment.folder / "load.json"
        self._journal = deployment.folder / "sender.journal"
        packets = deployment.make_load(chance, LOAD)
        self._load.write_bytes(orjson.dumps([seal(packet).body.decode() for packet in packets]))

    async def start(self, **settings: str) -> Any:
        """Start a sender: it publishes what its predecessor left."""
        given = settings | {"PYTHONPATH": str(ROOT)}
        return await self._deployment.run("sender", (PROGRAM, str(self._load), str(self._journal)), given)

    def read(self) -> tuple[set[UUID], set[UUID]]:
        """Return what is confirmed, and what was tried: the deployment takes them for A and U."""
        journal = Journal(self._journal)
        journal.close()
        confirmed, unknown = journal.confirmed, set(journal.unconfirmed)
        self._deployment.sent.confirmed.update(confirmed)
        self._deployment.sent.unknown.update(unknown)
        self._deployment.sent.unknown.difference_update(self._deployment.sent.confirmed)
        return confirmed, unknown


def has_any(deployment: Deployment, packets: set[UUID]) -> Callable[[], Awaitable[bool]]:
    """Return a condition: some of these packets are in the log."""

    async def holds() -> bool:
        return bool(packets & await deployment.logged())

    return holds


@asynccontextmanager
async def killed(deployment: Deployment, seed: int, point: str, times: range) -> AsyncIterator[Sending]:
    """A sender that has died at this point of its load, after it was there so many times; everybody else works."""
    chance = random.Random(seed)
    await deployment.open_session()
    for name in ("persister", "orchestrator"):
        await deployment.serve(name)
    sending = Sending(deployment, chance)
    async with deployment.working():
        sender = await sending.start(APC_CRASH_AT=f"{point}:{chance.choice(times)}")
        await sender.dies()
        yield sending


async def kill_before_the_confirm(deployment: Deployment, seed: int, record: Record) -> None:
    async with killed(deployment, seed, "publisher.before_confirm", CONFIRMS_BEFORE) as sending:
        _, unknown = sending.read()
        assert unknown, "not exercised: it knew of all"
        # The broker had answered: what the sender knows nothing of is in the log, and is sent a second time now.
        await until(has_any(deployment, unknown))
        repaired_at = monotonic()
        successor = await sending.start()
        assert await successor.process.wait() == 0, successor.output
        confirmed, still_unknown = sending.read()
        assert len(confirmed) == LOAD and not still_unknown
        await deployment.drain()
    await deployment.check()
    record("SIGKILL of a sender before the confirm", deployment, repaired_at)


async def kill_after_the_confirm(deployment: Deployment, seed: int, record: Record) -> None:
    async with killed(deployment, seed, "publisher.after_confirm", PUBLISHES_BEFORE) as sending:
        repaired_at = monotonic()
        confirmed, unknown = sending.read()
        assert confirmed and len(confirmed) + len(unknown) < LOAD, "not exercised: it had confirmed all, or nothing"
        # One confirm had come, and nobody was told of it any more.
        await until(has_any(deployment, unknown))
        await deployment.drain()
    await deployment.check()
    record("SIGKILL of a sender after the confirm", deployment, repaired_at)


@pytest.mark.long
async def test_killed_before_the_confirm(deployment: Deployment, record: Record) -> None:
    """Matrix row 1: the outcome is unknown; sent again under the same ids, each is one row and one effect."""
    await kill_before_the_confirm(deployment, 0, record)


@pytest.mark.long
async def test_killed_after_the_confirm(deployment: Deployment, record: Record) -> None:
    """Matrix row 2: nobody sends again, and what was confirmed goes its way without its sender."""
    await kill_after_the_confirm(deployment, 0, record)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(1, ROUNDS + 1))
async def test_killed_before_the_confirm_again_and_again(deployment: Deployment, seed: int, record: Record) -> None:
    await kill_before_the_confirm(deployment, seed, record)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(1, ROUNDS + 1))
async def test_killed_after_the_confirm_again_and_again(deployment: Deployment, seed: int, record: Record) -> None:
    await kill_after_the_confirm(deployment, seed, record)

"""Asks and timers while processes are killed at random: none is lost, doubled, or answered by the wrong person.

`make test-team` runs it large. Sizes: APC_TEAM_ASKS, APC_TEAM_TIMERS, APC_TEAM_KILLS; APC_TEAM_APART_MS between two
timers (0: all at one moment).
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from statistics import quantiles
from time import monotonic

import orjson
import pytest
from tests.faults.deployment import Deployment
from tests.faults.killing.timing_agent import MANAGERS, Errand, Sleep
from tests.faults.killing.timing_house import HALTED, TimingHouse, sized
from tests.faults.service import Service
from tests.support.log import replay_everything

from apc_client.sending import answer_packet
from apc_contracts.identity.registry import Kind, Registration
from apc_contracts.payloads.by_type import AnswerOutcome
from apc_log.queries.questions import list_questions

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]
TIMERS_OF_A_SESSION = 250
"""Below `limits.wakes`."""
AHEAD = timedelta(seconds=5)
LENGTH = "SELECT count(*) FROM apc_log.agent_packets"
PACKETS_OF_AN_ASK, PACKETS_OF_A_TIMER = 7, 2
EVERY_TENTH_BY_MALLORY = 10
AT_ONCE = 50
"""Asks that are open together."""
ANSWERS = """
SELECT packet #>> '{sender,agent_id}' AS by, verdict, count(*) FROM apc_log.packets
WHERE packet #>> '{payload,signal}' = 'ANSWER' GROUP BY 1, 2
"""
Record = Callable[..., None]
Start = Callable[[], Awaitable[Service]]


class Killer:
    """Kills processes at random, each when the log has come to a random length, and starts them again.

    Args:
        seed: of the choices.
        length: about how many packets the log will have.
    """

    def __init__(self, seed: int, length: int) -> None:
        self.kills: Counter[str] = Counter()
        self._chance = chance = random.Random(seed)
        self._lengths = sorted(chance.uniform(0.05, 0.9) * length for _ in range(sized("KILLS", 4)))

    @asynccontextmanager
    async def killing(self, house: TimingHouse) -> AsyncIterator[None]:
        starts: dict[str, Start] = {"gate": house.gate, "persister": house.persister, "worker": house.worker}
        running = {name: await start() for name, start in starts.items()}
        await house.register()
        task = asyncio.create_task(self._kill(house, starts, running))
        try:
            yield
        finally:
            self._lengths.clear()
            await task

    async def _kill(self, house: TimingHouse, starts: dict[str, Start], running: dict[str, Service]) -> None:
        while self._lengths:
            if await house.pool.fetchval(LENGTH) < self._lengths[0]:
                await asyncio.sleep(0.05)
                continue
            self._lengths.pop(0)
            name = self._chance.choice(sorted(running))
            running[name].kill()
            await running[name].process.wait()
            running[name] = await starts[name]()
            self.kills[name] += 1


async def answer_all(house: TimingHouse, count: int) -> None:
    """Approve what alice is asked, as it comes; each tenth question mallory tries to answer first."""
    seen: set[object] = set()
    alice = Registration("alice", house.user, MANAGERS, "people", kind=Kind.PERSON)
    mallory = Registration("mallory", house.user, "intern", "people", kind=Kind.PERSON)
    while len(seen) < count:
        for question in await list_questions(house.pool):
            if question.packet_id in seen:
                continue
            seen.add(question.packet_id)
            people = [mallory, alice] if len(seen) % EVERY_TENTH_BY_MALLORY == 0 else [alice]
            for person in people:
                await house.deployment.send(answer_packet(question, person, AnswerOutcome.APPROVED, "go"))
        await asyncio.sleep(0.05)  # somebody who looks again and again


async def test_asks_are_answered_once_while_processes_are_killed(deployment: Deployment, exercised: Record) -> None:
    house, asks = TimingHouse(deployment), sized("ASKS", 30)
    killer, began = Killer(7, PACKETS_OF_AN_ASK * asks), monotonic()
    async with house.opener():
        async with killer.killing(house):
            answering = asyncio.create_task(answer_all(house, asks))
            for number in range(asks):
                await house.ended(number - AT_ONCE, 120)  # beyond its share of the inbox, a sender is refused
                await house.open(f"errand-{number}", Errand(number=number))
            await asyncio.gather(answering)
            await house.ended(asks, 600)
        repaired_at = monotonic()
        await house.drained()
        await house.stop()
    results = [orjson.loads(row["result"]) for row in await house.results()]
    assert Counter((one["by"], one["times"]) for one in results) == {("alice", 1): asks}
    answers = {(row["by"], row["verdict"]): row["count"] for row in await house.pool.fetch(ANSWERS)}
    assert answers == {("alice", "accepted"): asks, ("mallory", "refused"): asks // EVERY_TENTH_BY_MALLORY}
    assert await house.pool.fetchval(HALTED) == 0
    await replay_everything(house.pool)
    print(f"\n{asks} asks in {repaired_at - began:.0f} s, killed: {dict(killer.kills)}")
    exercised("SIGKILL at random while handlers ask people", packets=2 * asks, injected=killer.kills.total(), doubled=0)


async def test_timers_come_once_while_processes_are_killed(deployment: Deployment, exercised: Record) -> None:
    house, timers = TimingHouse(deployment), sized("TIMERS", 60)
    killer, began = Killer(11, PACKETS_OF_A_TIMER * timers), monotonic()
    sessions = [min(TIMERS_OF_A_SESSION, timers - first) for first in range(0, timers, TIMERS_OF_A_SESSION)]
    async with house.opener():
        async with killer.killing(house):
            apart = timedelta(milliseconds=sized("APART_MS", 4)) * len(sessions)
            ahead = datetime.now(UTC) + AHEAD + timers * timedelta(milliseconds=2)
            for number, count in enumerate(sessions):
                work = Sleep(
                    count=count,
                    first=ahead + number * apart / len(sessions),
                    apart_ms=apart // timedelta(milliseconds=1),
                )
                await house.open(f"sleep-{number}", work)
            await house.ended(len(sessions), 900)
        repaired_at = monotonic()
        await house.drained()
        await house.stop()
    results = [orjson.loads(row["result"]) for row in await house.results()]
    assert sum(len(one["came"]) for one in results) == timers
    assert {times for one in results for times in one["came"].values()} == {1}
    assert await house.pool.fetchval(HALTED) == 0
    await replay_everything(house.pool)
    late = [milliseconds / 1000 for one in results for milliseconds in one["late_ms"]]
    cuts = quantiles(late, n=100)
    print(
        f"\n{timers} timers in {repaired_at - began:.0f} s, killed: {dict(killer.kills)}; "
        f"late by p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s, at most {max(late):.2f} s, at least {min(late):.3f} s"
    )
    exercised(
        "SIGKILL at random while timers go off", packets=2 * len(sessions), injected=killer.kills.total(), doubled=0
    )

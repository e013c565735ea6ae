"""Overload: one agent that is stopped, one that sends too much; nobody else may suffer for them."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from statistics import quantiles
from time import monotonic
from typing import Any
from uuid import UUID

import pytest
from tests.faults.deployment import Deployment
from tests.support.traffic import AGENTS, ScriptedWorker, make_idea, make_packet, until

from apc_contracts import Packet
from apc_contracts.contract.contract import PACKAGED_CONTRACT

CAST = {**AGENTS, "sleeper": ("watch", ())}
BOUND, OTHERS = 100, 40
QUOTA = {"packets_per_second": 5.0, "burst": 10}
BIG_BATCHES = {"APC_BATCH_PACKETS": "256", "APC_TRANSACTION_ENTRIES": "2000"}
AGENT = '''
"""An agent that writes each packet down that it handles."""

from pathlib import Path

from apc_agents import Agent, HandlerContext
from apc_contracts import IdeaPayload, Packet, PacketType

agent = Agent("sleeper", role="role", swarm="watch")


@agent.on(PacketType.IDEA)
async def note(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
    with Path("handled.txt").open("a") as file:
        file.write(f"{packet.packet_id}\\n")
'''
HEARTBEATS = "SELECT packet_id FROM apc_log.agent_packets WHERE sender_agent_id = 'sleeper'"
VERDICTS = """
SELECT coalesce(refusal_code, verdict) AS verdict, count(*) AS packets
FROM apc_log.agent_packets WHERE sender_agent_id = $1 GROUP BY 1
"""
Record = Callable[..., None]


class Sleeper:
    """The agent in its own process."""

    def __init__(self, deployment: Deployment) -> None:
        self.folder: Path = deployment.folder
        (self.folder / "sleepy.py").write_text(AGENT)

    @property
    def effects(self) -> Counter[UUID]:
        """How often its handler ran, by packet."""
        path = self.folder / "handled.txt"
        return Counter(map(UUID, path.read_text().split())) if path.exists() else Counter()

    def has_handled(self, packets: int) -> Callable[[], Awaitable[bool]]:
        """Return a condition: so many packets."""

        async def holds() -> bool:
            return len(self.effects) >= packets

        return holds


def contract_file(folder: Path, **limits: Any) -> str:
    """Return the packaged contract with other limits."""
    file = json.loads((files("apc_contracts") / PACKAGED_CONTRACT).read_text())
    file["limits"] |= limits
    path = folder / "contract.json"
    path.write_text(json.dumps(file))
    return str(path)


def idea(deployment: Deployment, sender: str, to: str) -> Packet:
    return make_packet(sender, make_idea("work"), (to,), cast=CAST, parent=deployment.opening)


def holds_shard(deployment: Deployment) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return bool(await deployment.pool.fetchval("SELECT epoch FROM apc_log.shards") == 1)

    return holds


def refused_for(deployment: Deployment, sender: str) -> Counter[str]:
    return Counter(deployment.workers[sender].nacks.values())


@pytest.mark.long
async def test_a_stopped_agent_is_refused_more_and_holds_up_nobody(deployment: Deployment, record: Record) -> None:
    """Row 36: its process stands still; beyond its bound it is refused, the others go on, and it catches up."""
    settings = {"APC_CONTRACT": contract_file(deployment.folder, outstanding_deliveries=BOUND)}
    sleeper, blue = Sleeper(deployment), deployment.workers["blue-1"]
    await deployment.open_session()
    await deployment.serve("persister")
    await deployment.serve("orchestrator", **settings)
    async with deployment.working():
        worker = await deployment.work("sleepy:agent", **settings)
        sent = [idea(deployment, "red-1", "sleeper")]
        await deployment.send(sent[0])
        await until(sleeper.has_handled(1), 60)
        worker.freeze()
        while not refused_for(deployment, "red-1"):
            sent.append(idea(deployment, "red-1", "sleeper"))
            await deployment.send(sent[-1])
        others = [idea(deployment, "red-1", "blue-1") for _ in range(OTHERS)]
        for packet in others:
            await deployment.send(packet)

        async def are_handled() -> bool:
            return {packet.packet_id for packet in others} <= set(blue.effects)

        await until(are_handled)
        assert set(refused_for(deployment, "red-1")) == {"OVERLOADED"}
        repaired_at = monotonic()
        worker.thaw()
        # The first one still counts when it was stopped before its receipts were there.
        await until(sleeper.has_handled(BOUND), 60)
        await _check(deployment, sleeper, {packet.packet_id for packet in sent})
    record("SIGSTOP of an agent", deployment, repaired_at)


async def _check(deployment: Deployment, sleeper: Sleeper, sent: set[UUID]) -> None:
    """All that it was sent was handled once or refused; and the standing equalities, the sleeper's among them."""
    played = ScriptedWorker(deployment.bus, "sleeper")
    await deployment.drain(120)
    played.effects.update(sleeper.effects)
    deployment.sent.confirmed.update(row["packet_id"] for row in await deployment.pool.fetch(HEARTBEATS))
    deployment.workers["sleeper"] = played
    refused = set(deployment.workers["red-1"].nacks)
    assert set(sleeper.effects) == sent - refused and set(sleeper.effects.values()) == {1}
    await deployment.check()


@dataclass
class Stopwatch:
    """Seconds from the publish of a packet to its handler, by the phase in which it was sent."""

    phase: str = "before"
    began: dict[UUID, tuple[str, float]] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)
    lengths: dict[str, float] = field(default_factory=dict)

    def start(self, packet: Packet) -> None:
        self.began[packet.packet_id] = (self.phase, monotonic())

    def stop(self, packet: Packet) -> bool:
        """Told of each packet that comes to a worker; it rejects none."""
        phase, began = self.began.pop(packet.packet_id, ("", 0.0))
        if phase:
            self.times.setdefault(phase, []).append(monotonic() - began)
        return False

    @asynccontextmanager
    async def during(self, phase: str) -> AsyncIterator[None]:
        self.phase, began = phase, monotonic()
        yield
        self.lengths[phase] = monotonic() - began
        self.phase = "after"

    def figures(self) -> list[str]:
        """Return a line for each phase."""
        lines = []
        for phase, length in self.lengths.items():
            times = sorted(self.times.get(phase, []))
            cuts = quantiles(times, n=100) if len(times) > 1 else [0.0] * 99
            lines.append(
                f"{phase:28} {len(times) / length:7.1f} packets/s   p50 {1000 * cuts[49]:7.1f} ms   "
                f"p99 {1000 * cuts[98]:7.1f} ms   ({len(times)} packets)"
            )
        return lines


@asynccontextmanager
async def steady(deployment: Deployment, rate: float, make: Callable[[], Packet]) -> AsyncIterator[list[Packet]]:
    """Send so many packets a second beside what happens in the context, each at its time; leaving ends it."""
    sent: list[Packet] = []
    sending: set[asyncio.Task[None]] = set()

    async def send() -> None:
        due = monotonic()
        while True:
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - monotonic()))
            packet = make()
            sent.append(packet)
            sending.add(asyncio.create_task(deployment.send(packet)))
            sending.difference_update([one for one in sending if one.done()])

    task = asyncio.create_task(send())
    try:
        yield sent
    finally:
        task.cancel()
        await asyncio.wait([task])
        await asyncio.gather(*sending)


def others(deployment: Deployment, watch: Stopwatch) -> Callable[[], Packet]:
    """Return the packets of those who have nothing to do with it, from red-1 to blue-1 and the sentinel in turn."""
    recipients = ("blue-1", "sentinel")
    count = iter(range(1 << 30))

    def make() -> Packet:
        packet = idea(deployment, "red-1", recipients[next(count) % 2])
        watch.start(packet)
        return packet

    return make


def timed_workers(deployment: Deployment, watch: Stopwatch) -> None:
    for agent in ("blue-1", "sentinel"):
        deployment.workers[agent] = ScriptedWorker(deployment.bus, agent, rejects=watch.stop)


def show(capsys: pytest.CaptureFixture[str], title: str, lines: Sequence[str]) -> None:
    with capsys.disabled():
        print(f"\n{title}", *lines, sep="\n  ")


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_an_agent_stopped_for_two_minutes_under_load(
    deployment: Deployment, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row 36, long enough for its connection to be given up and its deliveries to come again."""
    sleeper, watch = Sleeper(deployment), Stopwatch()
    timed_workers(deployment, watch)
    await deployment.open_session()
    await deployment.serve("persister", **BIG_BATCHES)
    await deployment.serve("orchestrator", **BIG_BATCHES)
    await until(holds_shard(deployment))
    async with deployment.working():
        worker = await deployment.work("sleepy:agent")
        async with steady(deployment, 40, others(deployment, watch)):
            async with steady(deployment, 20, lambda: idea(deployment, "red-1", "sleeper")) as to_sleeper:
                await until(sleeper.has_handled(20), 60)
                async with watch.during("all at work, 30 s"):
                    await asyncio.sleep(30)
                worker.freeze()
                async with watch.during("one stopped, 120 s"):
                    await asyncio.sleep(120)
                refused = len(deployment.workers["red-1"].nacks)
                assert refused, "not exercised: nothing was refused"
                assert set(refused_for(deployment, "red-1")) == {"OVERLOADED"}
                repaired_at = monotonic()
                worker.thaw()
                before = len(sleeper.effects)
                async with watch.during("it catches up, 30 s"):
                    await asyncio.sleep(30)
            caught_up = len(sleeper.effects) - before
        await _check(deployment, sleeper, {packet.packet_id for packet in to_sleeper})
    record("SIGSTOP of an agent, 120 s", deployment, repaired_at)
    told = f"its own: {len(to_sleeper)} sent, {refused} refused OVERLOADED, {caught_up} handled in the 30 s after"
    show(capsys, "one agent of three stopped, 60 packets/s in all; figures of the two others", [*watch.figures(), told])


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_a_noisy_agent_is_refused_by_its_quota(
    deployment: Deployment, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row 37: twenty times what its quota allows; the others' p99 is printed beside what it was before."""
    quota = {"packets_per_second": 10_000, "burst": 10_000, "roles": {}, "agents": {"librarian": QUOTA}}
    settings = BIG_BATCHES | {"APC_CONTRACT": contract_file(deployment.folder, quota=quota)}
    watch = Stopwatch()
    timed_workers(deployment, watch)
    await deployment.open_session()
    await deployment.serve("persister", **BIG_BATCHES)
    await deployment.serve("orchestrator", **settings)
    await until(holds_shard(deployment))
    async with deployment.working():
        async with steady(deployment, 40, others(deployment, watch)):
            async with watch.during("without it, 30 s"):
                await asyncio.sleep(30)
            noise = steady(deployment, 100, lambda: idea(deployment, "librarian", "sentinel"))
            async with noise, watch.during("beside it, 30 s"):
                await asyncio.sleep(30)
            repaired_at = monotonic()
        await deployment.drain(120)
    await deployment.check()
    verdicts = {row["verdict"]: row["packets"] for row in await deployment.pool.fetch(VERDICTS, "librarian")}
    assert verdicts["QUOTA_EXCEEDED"] > verdicts["accepted"] > QUOTA["burst"]
    assert not deployment.workers["red-1"].nacks, "nobody else is refused"
    record("one noisy agent", deployment, repaired_at, injected=sum(verdicts.values()))
    told = f"the noisy agent: {verdicts}"
    show(capsys, "one agent sends twenty times its quota; figures of the others", [*watch.figures(), told])

"""The services as their own processes, a load of packets, and what must hold once all is drained."""

import asyncio
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any
from uuid import UUID

import asyncpg
from tests.faults.cast import AWAY, CAST, POISON
from tests.faults.service import Service
from tests.support.log import ScriptedGate, replay_everything
from tests.support.traffic import (
    ScriptedAgents,
    ScriptedWorker,
    Sent,
    make_idea,
    make_packet,
    make_start,
    open_deliveries,
    until,
    violated_equalities,
)
from tests.support.traffic.worker import PAUSE_SECONDS

from apc_bus.errors import BusError
from apc_bus.port import Delivery
from apc_bus.rabbit import RabbitBus
from apc_bus.settings import LogKeySettings
from apc_bus.topology import DEAD_QUEUE, agent_queue, gate_queue, log_queue
from apc_contracts import Packet
from apc_log.batch import LogBatch, decode_batch
from apc_log.offline_verifier import parse_note, split_notes
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.verification.verify import verify_shard

LOADED_AT_ONCE = 20


STEADY_SENDERS = 8


STEADY_PAUSE_SECONDS = 0.05


SMALL_BATCHES = {"APC_BATCH_PACKETS": "16", "APC_TRANSACTION_ENTRIES": "64"}
"""So that a load of a few hundred packets is many batches and transactions."""


HOLDER = "SELECT holder FROM apc_log.shards WHERE shard = 0"


LOGGED = "SELECT packet_id FROM apc_log.agent_packets"


REFUSED = "SELECT packet_id FROM apc_log.agent_packets WHERE verdict = 'refused'"


CONFLICTS = "SELECT kind, coalesce(code, kind) AS code, reason FROM apc_log.packet_conflicts"


NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass
class Confirms:
    """What the senders were told, and when."""

    count: int = 0
    failures: int = 0
    """Publishes that raised: their packets were published again, under the same ids."""
    longest_gap: float = 0.0
    """Seconds between two confirms, since `begin`."""
    _last: float = field(default_factory=monotonic)

    def begin(self) -> None:
        """Measure gaps from now on."""
        self.longest_gap, self._last = 0.0, monotonic()

    def note(self) -> None:
        """A packet was confirmed now."""
        now = monotonic()
        self.count += 1
        self.longest_gap, self._last = max(self.longest_gap, now - self._last), now

    def reach(self, count: int) -> Callable[[], Awaitable[bool]]:
        """Return a condition: so many more than now."""
        wanted = self.count + count

        async def holds() -> bool:
            return self.count >= wanted

        return holds


@dataclass
class Deployment:
    """Broker, database, processes; agents that send and workers that handle, in this process."""

    amqp_url: str
    database_url: str
    folder: Path
    bus: RabbitBus
    pool: asyncpg.Pool
    agents: ScriptedAgents
    workers: dict[str, ScriptedWorker]
    sent: Sent = field(default_factory=Sent)
    confirms: Confirms = field(default_factory=Confirms)
    opening: Packet = field(default_factory=lambda: make_start(cast=CAST))
    services: list[Service] = field(default_factory=list)
    lost: int | None = None
    """Confirmed and not in the log, as `check` found."""
    drained_at: float | None = None
    """When each packet had its end, by `monotonic`."""

    async def serve(self, name: str, **settings: str) -> Service:
        """Start a service, with its own settings."""
        return await self.run(name, ("-m", "apc_cli", "serve", name), settings)

    async def work(self, agent: str, **settings: str) -> Service:
        """Start `apc worker` with an agent, `module:name`, of a module in the folder or of a package."""
        return await self.run("worker", ("-m", "apc_cli", "worker", agent), settings)

    async def run(self, name: str, program: tuple[str, ...], settings: dict[str, str]) -> Service:
        """Start a program of Python's, given as its arguments."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("APC_")}
        own = {
            "APC_AMQP_URL": self.amqp_url,
            "APC_DATABASE_URL": self.database_url,
            "APC_DATA_DIR": str(self.folder),
            "APC_DATABASE_POOL": "3",
            "APC_LOG_KEY": os.environ["APC_LOG_KEY"],
        }
        output = self.folder / f"{name}-{len(self.services)}.log"
        with output.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *program,
                cwd=self.folder, env=inherited | own | SMALL_BATCHES | settings, stdout=file, stderr=file,
            )  # fmt: skip
        service = Service(name, process, output)
        self.services.append(service)
        return service

    async def open_session(self) -> None:
        """Register the cast and START the session."""
        await self.agents.register()
        await self.send(self.opening)

    async def send_load(self, chance: random.Random, count: int) -> None:
        """Packets of all kinds, some at once; each is published until it is confirmed."""
        packets = self.make_load(chance, count)
        for start in range(0, count, LOADED_AT_ONCE):
            await asyncio.gather(*map(self.send, packets[start : start + LOADED_AT_ONCE]))

    def make_load(self, chance: random.Random, count: int) -> list[Packet]:
        """Packets of all kinds, of which nobody has heard yet."""
        return [self._packet(chance) for _ in range(count)]

    @asynccontextmanager
    async def sending(
        self, chance: random.Random, send_one: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncIterator[None]:
        """A steady load beside what happens in the context; leaving waits until all of it is confirmed.

        `send_one` sends a packet of the load; by default one of any kind.
        """
        stop = asyncio.Event()

        async def send() -> None:
            while not stop.is_set():
                await (send_one() if send_one else self.send(self._packet(chance)))
                await asyncio.sleep(STEADY_PAUSE_SECONDS)  # a load, not a flood

        senders = [asyncio.create_task(send()) for _ in range(STEADY_SENDERS)]
        try:
            yield
            stop.set()
            await asyncio.gather(*senders)
        finally:
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)

    async def send(self, packet: Packet, **properties: Any) -> None:
        """An exception means unknown: published again until it is confirmed, as every sender has to.

        `properties` replace those of its message.
        """
        self.sent.unknown.add(packet.packet_id)
        publication = self.agents.publication(packet, **properties)

        async def is_confirmed() -> bool:
            try:
                await self.bus.publish(publication)
            except BusError:
                self.confirms.failures += 1
                return False
            return True

        await until(is_confirmed, None, pause_seconds=PAUSE_SECONDS)
        self.confirms.note()
        self.sent.unknown.discard(packet.packet_id)
        self.sent.confirmed.add(packet.packet_id)

    def _packet(self, chance: random.Random) -> Packet:
        kind = chance.random()
        intent, fields = "work", {}
        to: tuple[str, ...] = (chance.choice(("blue-1", "sentinel")),)
        if kind < 0.15:
            to = ("blue-1", "sentinel")
        elif kind < 0.20:
            to = ("nobody",)
        elif kind < 0.25:
            intent = POISON
        elif kind < 0.30:
            to, fields = (AWAY,), {"ttl_ms": 1500}
        return make_packet("red-1", make_idea(intent), to, cast=CAST, parent=self.opening, **fields)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """All workers consume."""
        async with AsyncExitStack() as stack:
            for worker in self.workers.values():
                await stack.enter_async_context(worker.working())
            yield

    async def peek(self, queue: str) -> list[Delivery]:
        """Return what waits in a queue whose consumer has died, first what it had taken; all of it stays there."""
        async with asyncio.timeout(20), self.bus.subscribe(queue, prefetch=2000) as subscription:
            return await subscription.receive(2000)

    async def redelivered_packets(self) -> list[UUID]:
        """Return the packets that the dead gate had received and not acknowledged, in their order."""
        deliveries = [one for one in await self.peek(gate_queue(0)) if one.is_redelivered]
        return [UUID(one.message.message_id) for one in deliveries if one.message.type == "IDEA"]

    async def redelivered_batches(self) -> list[LogBatch]:
        """Return the batches that the dead persister had received and not acknowledged."""
        deliveries = [one for one in await self.peek(log_queue(0)) if one.is_redelivered]
        return [decode_batch(one.message.body) for one in deliveries if one.message.type == "log_batch"]

    async def logged(self) -> set[UUID]:
        """Return the packets in the log."""
        return {row["packet_id"] for row in await self.pool.fetch(LOGGED)}

    async def commit_everything(self) -> None:
        """Wait until all that stands in the log queue now is committed: an opening of ours comes after it."""
        marker = ScriptedGate(self.bus)
        await marker.open()

        async def is_committed() -> bool:
            return bool(await self.pool.fetchval(HOLDER) == marker.holder)

        await until(is_committed)

    async def settle(self, patience: float = 30) -> None:
        """Wait until each packet has its end and each refusal its answer."""
        try:
            await until(self._is_drained, patience)
            self.drained_at = monotonic()
        except TimeoutError:
            found = await violated_equalities(self.pool, self.sent, self.workers.values())
            left = await open_deliveries(self.pool)
            said = "".join(f"\n{service.name}: {service.output}" for service in self.services)
            raise AssertionError(f"not drained, {left} deliveries open: {found}{said}") from None

    async def drain(self, patience: float = 30) -> None:
        """Let everything settle, then stop the services cleanly."""
        await self.settle(patience)
        orchestrators = [one for one in self.services if one.name == "orchestrator"]
        for service in orchestrators:
            if service.process.returncode is None:
                await service.stop()
        await self.commit_everything()
        for service in self.services:
            if service.process.returncode is None:
                await service.stop()

    async def _is_drained(self) -> bool:
        try:
            return await self._has_nothing_left()
        except (BusError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False  # a server that has just come back

    async def _has_nothing_left(self) -> bool:
        if not self.sent.confirmed <= await self.logged() or await open_deliveries(self.pool):
            return False
        told = {packet_id for worker in self.workers.values() for packet_id in worker.nacks}
        if not {row["packet_id"] for row in await self.pool.fetch(REFUSED)} <= told:
            return False
        return all(worker.is_idle for worker in self.workers.values()) and not any((await self._depths()).values())

    async def _depths(self) -> dict[str, int]:
        """Queue -> how many messages are ready in it."""
        queues = [gate_queue(0), log_queue(0), DEAD_QUEUE]
        queues += [agent_queue(agent, urgent) for agent in CAST for urgent in (True, False)]
        return {queue: (await self.bus.depth(queue)).messages for queue in queues}

    async def check(self, *, fenced_allowed: bool = False, quarantined: Mapping[str, int] = NOTHING) -> None:
        """S1 to S8 and the numbers of the log; nobody consumes any more, so that ready is all there is.

        `quarantined`: how many inputs of each code stand in quarantine, and no other.

        S7: the tree fits the rows and every exported checkpoint. Beyond them, the log played again gives every verdict
        and transition, and the projection `sessions`.
        """
        self.lost = len(self.sent.confirmed - await self.logged())
        assert await violated_equalities(self.pool, self.sent, self.workers.values()) == []
        await self._check_evidence()
        await replay_everything(self.pool)
        conflicts = await self.pool.fetch(CONFLICTS)
        found = Counter(row["code"] for row in conflicts if not (fenced_allowed and row["kind"] == "fenced"))
        assert found == Counter(quarantined), f"no other double, conflict or stranger: {conflicts[:10]}"
        depths = await self._depths()
        assert not any(depths.values()), f"S8: {depths}"

    async def _check_evidence(self) -> None:
        key = load_signer(LogKeySettings()).public_key(0)
        exported = split_notes((self.folder / "checkpoints/shard-0.checkpoints").read_text())
        outside = [parse_note(text).check(key) for text in exported]
        async with self.pool.acquire() as connection:
            report = await verify_shard(connection, 0, key, outside=outside)
        assert outside and not report.findings, f"S7: {report}"

    @property
    def duplicates(self) -> int:
        """Deliveries that came a second time and had no effect."""
        return sum(worker.duplicates for worker in self.workers.values())

    async def close(self) -> None:
        """End what is still running."""
        for service in self.services:
            if service.process.returncode is None:
                service.kill()
                await service.process.wait()

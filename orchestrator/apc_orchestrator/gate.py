"""The gate of one shard: stands by, acquires the shard, serves it until it is lost or told to stop."""

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import asyncpg
import structlog

from apc_bus.artifacts import ArtifactStore
from apc_bus.backoff import Backoff
from apc_bus.concurrency import cancelled, failure_of, unasked_cancel_fails
from apc_bus.database import DATABASE_AWAY
from apc_bus.errors import BusError
from apc_bus.last_resort import LastResort
from apc_bus.port import Bus, Delivery, Message, Publication, Subscription
from apc_bus.settings import OrchestratorSettings
from apc_bus.supervision import Health, reason_of
from apc_bus.topology import RECEIPTS, gate_queue
from apc_contracts.contract.collection import Contracts
from apc_contracts.identity.ids import new_packet_id
from apc_log.protocol_evidence import Positions
from apc_orchestrator.errors import ShardLost
from apc_orchestrator.fence import Fence, keep_hearing
from apc_orchestrator.judging.inputs import PROBE_BODY, TYPE_RECEIPTS
from apc_orchestrator.judging.registry import Registry
from apc_orchestrator.lease import Lease
from apc_orchestrator.lease_acquisition import take_shard
from apc_orchestrator.service_state import ShardState
from apc_orchestrator.shard.lease_resources import ShardResources
from apc_orchestrator.shard.protocols import OtherShards, load_protocols
from apc_orchestrator.shard.shard_server import ShardServer
from apc_orchestrator.shard.unjudgeable import UnjudgeableTimers
from apc_orchestrator.verification import Bounds, Verifier

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

Result = TypeVar("Result")

_log = structlog.get_logger("apc_orchestrator")
_LOST = (ShardLost, BusError, *DATABASE_AWAY)


class Gate:
    """One candidate for one shard; the broker lets one of all candidates consume (single active consumer)."""

    def __init__(
        self,
        settings: OrchestratorSettings,
        contracts: Contracts,
        bus: Bus,
        pool: asyncpg.Pool,
        artifacts: ArtifactStore,
        shard: int,
        health: Health,
        last_resort: LastResort,
    ) -> None:
        self._settings = settings
        self._contracts = contracts
        self._bus = bus
        self._pool = pool
        self._artifacts = artifacts
        self._shard = shard
        self._health = health
        self._last_resort = last_resort
        self.state = ShardState(shard)
        self._unjudgeable = UnjudgeableTimers()

    async def run(self, stop: asyncio.Event) -> None:
        """Hold the shard whenever the broker allows it, until `stop`. Losing it is normal; it is acquired again.

        However it was lost: the process may hold other shards and would go on without this one.
        """
        loop = asyncio.get_running_loop()
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, stop)
        task = f"the gate of shard {self._shard}"
        while not stop.is_set():
            began = loop.time()
            try:
                with unasked_cancel_fails():
                    await self._hold(stop)
                if stop.is_set():
                    return
                raise ShardLost("serving it has ended without having been told to stop")
            except _LOST as error:
                _log.warning("shard_left", shard=self._shard, reason=reason_of(error))
            except Exception as error:
                # A fault of ours: the next lease holder starts again from the log.
                _log.exception("gate_failed", shard=self._shard)
                self._health.fail(task, reason_of(error))
                if self.state.server is not None and self.state.server.batches:
                    backoff.reset()  # inputs came through meanwhile: this is the next problem
            finally:
                self.state.leave()
            if loop.time() - began > LONGEST_PAUSE_SECONDS:
                backoff.reset()  # it went well for a while: this is a new problem
            await backoff.wait()
            self._health.resume(task)

    async def _hold(self, stop: asyncio.Event) -> None:
        queue = gate_queue(self._shard)
        watch = self._last_resort.watch(self._bus, queue)
        async with (
            self._bus.subscribe(queue, prefetch=self._settings.gate_prefetch, watch=watch) as inputs,
            keep_hearing(self._bus, queue, Fence.of(self._settings.heartbeat), self._health),
        ):
            _log.info("gate_stands_by", shard=self._shard)
            first = await self._stand_by(inputs, stop)
            if first is None:
                return
            lease = await _unless(stop, self._acquire(inputs))
            if lease is None:
                return
            resources, positions = await self._load(lease, inputs)
            server = ShardServer(resources, stop)
            self.state.take(server)
            beside = [resources.verifier.run()]
            if self._settings.shards > 1:
                others = OtherShards(self._pool, self._shard, resources.protocols, positions)
                beside.append(others.follow(self._settings.other_shards_seconds))
            await self._serve(server.serve(first), beside)

    async def _load(self, lease: Lease, inputs: Subscription) -> tuple[ShardResources, Positions]:
        """Load what a lease works with: everything confirmed before it is in the database by now."""
        registry = await Registry.load(self._pool, self._bus.user, self._shard, self._contracts)
        for user, agents in registry.shared_users().items():
            _log.warning("broker_user_shared", user=user, agents=agents, reason="each can speak as the others")
        protocols, positions = await load_protocols(self._pool, self._contracts.default)
        verifier = Verifier(
            self._bus,
            self._artifacts,
            self._shard,
            registry.by_id,
            self._contracts.default,
            self._health,
            Bounds.of(self._settings),
        )
        resources = ShardResources(
            settings=self._settings,
            contracts=registry.contracts,
            bus=self._bus,
            pool=self._pool,
            inputs=inputs,
            lease=lease,
            registry=registry,
            protocols=protocols,
            verifier=verifier,
            unjudgeable_timers=self._unjudgeable,
        )
        return resources, positions

    async def _serve(self, serve: Coroutine[Any, Any, None], beside: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Serve the shard while its background tasks run.

        When one of them fails the shard is left, and the next lease holder starts again from the log.
        """
        serving = asyncio.create_task(serve)
        tasks = [serving, *(asyncio.create_task(work) for work in beside)]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if serving not in ended:
                error = failure_of(next(iter(ended)))
                _log.error("task_beside_the_gate_ended", shard=self._shard, exc_info=error)
                raise ShardLost("a background task of the gate has ended") from error
            await serving
        finally:
            await cancelled(*tasks)

    async def _acquire(self, inputs: Subscription) -> Lease:
        return await take_shard(inputs, self._pool, self._shard, self._bus.user, self._contracts.default.body)

    async def _stand_by(self, inputs: Subscription, stop: asyncio.Event) -> list[Delivery] | None:
        """Wait to become the active consumer: the one that receives a message.

        A probe arrives even when nobody publishes; one at a time, so that none pile up while nobody is active.
        """
        receiving = asyncio.ensure_future(inputs.receive(self._settings.batch_packets, self._settings.batch_bytes))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not receiving.done() and not stop.is_set():
                if (await self._bus.depth(gate_queue(self._shard))).messages == 0:
                    await self._bus.publish(self._probe())
                await asyncio.wait(
                    {receiving, stopping},
                    timeout=self._settings.probe_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            return await receiving if receiving.done() else None
        finally:
            await cancelled(receiving, stopping)

    def _probe(self) -> Publication:
        user = self._bus.user
        message = Message(PROBE_BODY, str(new_packet_id()), type=TYPE_RECEIPTS, user_id=user)
        return Publication(RECEIPTS, str(self._shard), message)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return the result of `work`; once told to stop, cancel it and return None."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        await cancelled(working, stopping)


def utc_now() -> datetime:
    """Return the gate's own clock: the one that judges expiry and skew."""
    return datetime.now(UTC)

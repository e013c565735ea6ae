"""Serve a shard during one lease: micro-batches from its queue, from timers and from reports of deliveries.

Each batch is judged as a whole, logged as one log batch, delivered when the broker has confirmed the log batch, and its
inputs are acknowledged last. While one batch is delivered, the next is judged.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from structlog.contextvars import bind_contextvars

from apc_bus.concurrency import cancelled
from apc_bus.crash_points import crash_point
from apc_bus.last_resort import taken_alone
from apc_bus.port import Delivery
from apc_bus.telemetry import NO_TRACE, CountedWarning, get_logger
from apc_contracts.admission.rules.capacity import bound_of
from apc_contracts.limits import DocumentLimits
from apc_contracts.vocabulary import SUBSTRATE_RECIPIENT
from apc_contracts.wire.parsing import ReceivedPacket
from apc_contracts.wire.receipts import Receipt, ReceiptKind
from apc_log.body_encryption import KeyRing
from apc_log.queries.agents import read_signs
from apc_log.session_loading import newest_presence, open_sessions, unanswered_denials
from apc_orchestrator.batch import Batch, Outgoing
from apc_orchestrator.errors import SessionUnloadable, ShardLost
from apc_orchestrator.judging.inputs import Input, is_probe, read_inputs, session_ids, standby_of
from apc_orchestrator.judging.judge import Judge
from apc_orchestrator.judging.memory import ShardMemory
from apc_orchestrator.shard.intake import InputIntake, SessionLoader, ShardResources, Stopping
from apc_orchestrator.shard.pipeline import Pipeline
from apc_orchestrator.shard.presence import PresenceWatch
from apc_orchestrator.shard.timers import RETRY_SECONDS, Timers
from apc_orchestrator.telemetry import count_batch, ids_of

# The outcome of the orchestrator's own deliveries: confirmed by the broker, or refused.

_log = get_logger("apc_orchestrator")


class Reports:
    """Collects reports while a batch is sent, and judges them with the next one."""

    def __init__(self, judge: Judge, loader: SessionLoader, intake: InputIntake) -> None:
        self._judge = judge
        self._loader = loader
        self._intake = intake
        self._waiting: deque[tuple[Outgoing, str | None]] = deque()
        self._undeliverable = CountedWarning(_log, "nack_undeliverable")

    def __len__(self) -> int:
        """Return the number of reports that wait for their session."""
        return len(self._waiting)

    def note(self, outgoing: Outgoing, failure: str | None) -> None:
        """Take the report of one delivery: None = confirmed, else the reason of the broker's refusal."""
        is_substrate = outgoing.recipient == SUBSTRATE_RECIPIENT
        if failure is not None and outgoing.packet_id is None:
            nack_id = outgoing.publication.message.message_id
            self._undeliverable.note(packet_id=nack_id, agent_id=outgoing.recipient, reason=failure)
        elif failure is not None or is_substrate:
            self._waiting.append((outgoing, failure))
            self._intake.wake()
        else:
            self._judge.confirm_delivery(outgoing)

    async def judge(self, batch: Batch) -> None:
        """Judge what was reported. The sessions may have been evicted meanwhile."""
        reports, self._waiting = self._waiting, deque()
        for outgoing, failure in reports:
            if outgoing.packet_id is None:
                continue
            try:
                session = await self._loader.load(outgoing.session_id)
            except SessionUnloadable:
                self._waiting.append((outgoing, failure))
                continue
            if session is None:
                continue
            if failure is None:
                self._judge.confirm_substrate(batch, session, outgoing.packet_id)
            else:
                self._judge.take_receipts(batch, session, (_failed(outgoing, failure, batch.now),))


def _failed(outgoing: Outgoing, failure: str, now: datetime) -> Receipt:
    """Return the receipt of a delivery that the broker refused."""
    assert outgoing.packet_id is not None
    return Receipt(
        packet_id=outgoing.packet_id,
        session_id=outgoing.session_id,
        recipient=outgoing.recipient,
        kind=ReceiptKind.DEAD_LETTERED,
        attempt=outgoing.attempt,
        at=now,
        error=failure,
    )


LONGEST_DRAIN_SECONDS = 10.0
"""An orchestrator that is told to stop leaves after this time, or when it has judged as much as the broker hands over
at once: others may go on publishing."""


RESTART = "check the clock of this machine (NTP, chrony), then restart the orchestrator: recorded time never goes back"


def utc_now() -> datetime:
    """Return the gate's own clock: the one that judges expiry and skew."""
    return datetime.now(UTC)


class ShardServer:
    """Serves one shard during one lease. Any doubt about still holding it raises ShardLost."""

    def __init__(self, resources: ShardResources, stop: asyncio.Event) -> None:
        self._resources = resources
        self._stop = stop
        bounds = resources.contract.limits
        self._limits = DocumentLimits(bounds.packet_bytes, bounds.nesting_levels, bounds.nodes)
        self._memory = _memory_of(resources)
        self._judge = Judge(self._memory)
        self._loader = SessionLoader(resources, self._memory.sessions, self._judge)
        self._intake = InputIntake(resources)
        self._reports = Reports(self._judge, self._loader, self._intake)
        self._pipeline = Pipeline(resources, self._intake, self._reports.note, stop)
        self._timers = Timers(resources, self._loader, self._judge, self._memory)
        self.presence = PresenceWatch(resources, self._memory, self._intake.wake)
        """Runs beside the serving."""
        self._waiting: list[Delivery] = []
        self._open: set[str] = set()
        self._now = utc_now()
        self._is_ahead = False
        self._clock_skew = timedelta(milliseconds=bounds.clock_skew_ms)

    @property
    def epoch(self) -> int:
        return self._resources.lease.epoch

    @property
    def batches(self) -> int:
        """Number of batches that the broker has confirmed in this lease."""
        return self._pipeline.batches

    @property
    def open_sessions(self) -> int:
        """Number of sessions of the shard that have not ended."""
        return len(self._open)

    @property
    def seconds_ahead(self) -> float:
        """By how much the time that the shard's batches record is ahead of this machine's clock, which was set back."""
        return max(0.0, (self._now - utc_now()).total_seconds())

    @property
    def outstanding(self) -> Mapping[str, tuple[int, int]]:
        """Open deliveries by recipient, and from how many on it gets no more; a copy, for readers in other threads."""
        most, known = self._resources.contract.limits.outstanding_deliveries, self._resources.registry.by_id
        counts = dict(self._memory.outstanding.totals)
        return {one: (count, bound_of(known[one], most) if one in known else most) for one, count in counts.items()}

    @property
    def hosts(self) -> tuple[int, int] | None:
        """How many hosts are here, and how many are gone; None in another shard than the one that looks."""
        return self.presence.hosts if self._resources.lease.shard == 0 else None

    async def serve(self, first: list[Delivery]) -> None:
        """Serve until the stop, then drain: what the broker has sent is judged, logged, delivered and acknowledged.

        Raises:
            ShardLost: a log batch was not confirmed, or the broker was silent for too long.
        """
        lease, stop = self._resources.lease, self._stop
        bind_contextvars(shard=lease.shard, epoch=lease.epoch)
        stopping: Stopping = asyncio.create_task(stop.wait())
        try:
            await self._recover()
            received = first
            while True:
                crash_point("gate.after_receive")
                await self._take_turn(received)
                if stop.is_set():
                    break
                received = await self._intake.next(stopping, self._seconds_to_wait())
            await self._drain()
        finally:
            await asyncio.gather(cancelled(stopping), self._intake.close(), self._pipeline.close())

    async def _recover(self) -> None:
        """Deliver and verify again what was open under the last lease, and repeat late refusals."""
        resources, batch = self._resources, self._open_batch()
        pool, shard = resources.pool, resources.lease.shard
        known = await open_sessions(pool, shard)
        await self._loader.load_all([stored.session_id for stored in known if stored.has_work])
        for stored in known:
            self._timers.note(stored.session_id, stored.next_deadline)
            if not stored.is_terminal:
                self._open.add(stored.session_id)
        for session in self._memory.sessions.loaded():
            self._judge.redeliver(batch, session)
            await asyncio.sleep(0)  # give the connection time to read: silence would count as a lost shard
        ring = KeyRing.of(resources.settings)
        await self._recall_presence(ring)
        self._memory.signs.recall(await read_signs(resources.home))
        for denial in await unanswered_denials(pool, shard, batch.now, self._limits, ring):
            self._judge.answer_denial(batch, denial)
        batch.outgoing = [outgoing.repeated() for outgoing in batch.outgoing]
        await self._pipeline.deliver(batch)
        _log.info("shard_recovered", shard=shard, deliveries=len(batch.outgoing))

    async def _recall_presence(self, ring: KeyRing | None) -> None:
        """Know the newest packets of the presence session: a repeat may be among the first inputs."""
        resources, presence = self._resources, self._memory.sessions.presence
        most = presence.most_at_takeover(resources.settings.gate_prefetch, len(resources.registry.by_id))
        newest = await newest_presence(resources.pool, resources.lease.shard, most, ring)
        for packet_id, identity in newest.items():
            presence.remember(packet_id, identity)

    async def _take_turn(self, received: Sequence[Delivery]) -> None:
        """Run a batch; one input that has to be alone ends before anything else is done."""
        waiting = [*self._waiting, *received]
        if not waiting or waiting[0].risk is None:
            return await self._run_batch(received)
        async with taken_alone(waiting):
            await self._run_batch(received, is_alone=True)
            await self._pipeline.finish_sending()
        await self._run_batch(None)

    async def _run_batch(self, received: Sequence[Delivery] | None, *, is_alone: bool = False) -> None:
        """Judge a batch, log it, and begin to send it.

        Args:
            received: judged behind the inputs that wait; None = those go on waiting.
            is_alone: without timers and reports.
        """
        self._intake.check_silence()
        batch = self._open_batch()
        bind_contextvars(batch=batch.number)
        done = [] if received is None else await self._judge_inputs(batch, received)
        batch.trace = NO_TRACE
        # Now: while this batch is sent, the next one takes the waiting inputs and may not have judged them yet.
        is_everything = not self._waiting
        if not is_alone:
            await self._reports.judge(batch)
            await self._timers.fire(batch)
            self.presence.judge(batch, self._judge)
        self._loader.end_erased(batch)
        await self._log(batch, len(done))
        await self._pipeline.send(batch, done, is_everything=is_everything)
        await self._loader.evict_sometimes(self._pipeline.last_sent)

    def _open_batch(self) -> Batch:
        # Never goes back: a later batch has a later time, whatever the wall clock does.
        self._now = max(self._now, utc_now())
        self._tell_of_clock()
        return Batch(self._pipeline.next_number, self._now)

    def _tell_of_clock(self) -> None:
        """Warn once when the clock was set back by more than the contract's skew: packets expire too early."""
        ahead = self.seconds_ahead
        is_ahead = ahead > self._clock_skew.total_seconds()
        if is_ahead and not self._is_ahead:
            shard = self._resources.lease.shard
            _log.warning("recorded_time_ahead", shard=shard, seconds=round(ahead), remedy=RESTART)
        self._is_ahead = is_ahead

    async def _judge_inputs(self, batch: Batch, received: Sequence[Delivery]) -> list[Delivery]:
        """Judge in arrival order; only inputs whose session cannot be loaded wait. Return the judged ones."""
        done = []
        unloadable: set[str] = set()
        waiting, self._waiting = self._waiting, []
        self._loader.note_received(sum(len(delivery.message.body) for delivery in received))
        for delivery in (*waiting, *received):
            if batch.is_full():
                self._waiting.append(delivery)
                self._intake.wake()
                continue
            if is_probe(delivery.message):
                if (name := standby_of(delivery.message, self._resources.lease.user)) is not None:
                    self._resources.note_standby(name)
                done.append(delivery)
                continue
            if delivery.set_aside is not None:
                self._judge.set_aside(batch, delivery.message, delivery.set_aside.properties)
            elif not await self._judge_input(batch, delivery, unloadable):
                self._waiting.append(delivery)
                continue
            done.append(delivery)
        return done

    async def _judge_input(self, batch: Batch, delivery: Delivery, unloadable: set[str]) -> bool:
        """Judge one input; return False when it must wait for its session."""
        try:
            inputs = read_inputs(delivery, self._limits)
            needed = {session_id for judgeable in inputs for session_id in session_ids(judgeable)}
            # Inputs of a session that cannot be loaded keep their order: later ones wait behind earlier ones.
            if not unloadable.isdisjoint(needed) or not await self._loader.can_load(needed):
                unloadable |= needed
                return False
            for judgeable in inputs:
                self._expire_before(batch, judgeable)
                self._memory.traces.begin(batch, judgeable, delivery.message)
                self._judge.take(batch, judgeable, delivery.message)
        except ShardLost:
            raise
        except Exception as error:
            # Memory may be half changed: the shard is left, which logs the traceback, and the input comes again.
            _log.error("input_unjudgeable", reason=repr(error), **ids_of(delivery))
            raise
        return True

    def _expire_before(self, batch: Batch, judgeable: Input) -> None:
        """Let the deadlines pass after which this packet comes too late. Raises ShardLost."""
        if isinstance(judgeable, ReceivedPacket):
            session = self._memory.sessions.get(judgeable.packet.trace.session_id)
            if session is not None:
                batch.trace = NO_TRACE
                self._timers.expire(batch, session)

    async def _log(self, batch: Batch, inputs: int) -> None:
        """Log the batch. Once that is confirmed, the batch has happened."""
        for session_id, session in batch.touched.items():
            self._timers.note(session_id, session.next_deadline)
            (self._open.discard if session.is_terminal else self._open.add)(session_id)
        confirm_seconds = await self._pipeline.log(batch)
        if confirm_seconds is not None:
            self._memory.sessions.touch(batch.touched, batch.number)
            for request in batch.verifications:
                self._resources.verifier.submit(request)
        count_batch(batch, inputs, confirm_seconds)

    async def _drain(self) -> None:
        """Judge what the broker has sent already and what waits, and the reports of the last deliveries."""
        loop = asyncio.get_running_loop()
        await self._pipeline.finish_sending()
        until = loop.time() + LONGEST_DRAIN_SECONDS
        left, waited = self._resources.settings.gate_prefetch, -1
        while left > 0 and loop.time() < until:
            received = await self._intake.handed_over()
            if not received and not self._reports and len(self._waiting) in (0, waited):
                break  # what waits still has no session: the next lease judges it
            left, waited = left - len(received), len(self._waiting) + len(received)
            await self._take_turn(received)
            await self._pipeline.finish_sending()

    def _seconds_to_wait(self) -> float:
        """Return the seconds until there is work without a new input."""
        longest = RETRY_SECONDS if self._waiting or self._reports else self._intake.longest_wait_seconds
        left = self._timers.seconds_left
        return longest if left is None else min(longest, left)


def _memory_of(resources: ShardResources) -> ShardMemory:
    settings = resources.settings
    return ShardMemory(
        contracts=resources.contracts,
        lease=resources.lease,
        shards=settings.shards,
        operator=settings.operator_user or resources.bus.user,
        registry=resources.registry,
        protocols=resources.protocols,
        logs_heartbeats=settings.log_heartbeats == "all",
    )

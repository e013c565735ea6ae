"""Serving a shard that is held: micro-batches from the queue, from timers and from the gate's own deliveries."""

import asyncio
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from time import perf_counter
from typing import Any, Literal
from uuid import UUID

import asyncpg
import structlog
from structlog.contextvars import bind_contextvars, bound_contextvars

from apc_bus.counted_warning import CountedWarning
from apc_bus.crash_points import crash_point
from apc_bus.errors import PublishRefused, PublishUnroutable
from apc_bus.port import Bus, Delivery, Publication, Subscription
from apc_bus.settings import OrchestratorSettings
from apc_bus.subject_keys import KeyRing
from apc_bus.tracing import NO_TRACE
from apc_contracts.contract import Contract
from apc_contracts.limits import Limits
from apc_contracts.protocol_ledger import ProtocolLedger
from apc_contracts.receipts import Receipt, ReceiptKind
from apc_contracts.session import Hop, Session, timer
from apc_contracts.session.verification import repeated
from apc_contracts.vocabulary import PRESENCE_SESSION, SUBSTRATE_RECIPIENT
from apc_orchestrator import deliveries, publications
from apc_orchestrator.batch import Batch, Outgoing
from apc_orchestrator.deadlines import Deadlines
from apc_orchestrator.entries import hop_entry
from apc_orchestrator.errors import SessionUnloadable, ShardLost
from apc_orchestrator.fence import Fence
from apc_orchestrator.inbox import is_probe, is_receipts, read_input, session_ids
from apc_orchestrator.judge import Judge
from apc_orchestrator.loading import load_session
from apc_orchestrator.memory import MemoryReturn
from apc_orchestrator.metrics import count_batch
from apc_orchestrator.publications import Tenure
from apc_orchestrator.quarantine import flood_entry
from apc_orchestrator.recovery import open_sessions, unanswered_denials
from apc_orchestrator.registry import Registry
from apc_orchestrator.sessions import Sessions
from apc_orchestrator.telling import ids_of, tell_judged
from apc_orchestrator.tenure import read_head
from apc_orchestrator.tracing import Traces, end_spans, logged
from apc_orchestrator.verification import Verifier

RETRY_SECONDS = 0.5
EVICTION_SECONDS = 5.0
HANDED_OVER_SECONDS = 0.05
"""So long one that is told to stop waits for what the broker has handed over, and may still be on its way here."""
LONGEST_DRAIN_SECONDS = 2.0
"""Then it leaves: others may go on publishing."""

_log = structlog.get_logger("apc_orchestrator")
_UNAVAILABLE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


class ShardServer:
    """One tenure: memory, numbering and pipeline of a shard. Any doubt about holding it raises ShardLost."""

    def __init__(
        self,
        settings: OrchestratorSettings,
        contract: Contract,
        bus: Bus,
        pool: asyncpg.Pool,
        inputs: Subscription,
        tenure: Tenure,
        holder: UUID,
        registry: Registry,
        verifier: Verifier,
        poison: set[Hashable],
        protocols: ProtocolLedger,
    ) -> None:
        self._settings = settings
        self._fence = Fence.of(settings.heartbeat)
        self._contract = contract
        self._bus = bus
        self._pool = pool
        self._inputs = inputs
        self._tenure = tenure
        self._holder = holder
        self._verifier = verifier
        self._poison = poison
        bounds = contract.limits
        self._limits = Limits(bounds.packet_bytes, bounds.nesting_levels, bounds.nodes)
        self._ring = KeyRing.of(settings)
        self._erased: list[tuple[Session, list[Hop]]] = []
        self._sessions = Sessions()
        self._memory = MemoryReturn()
        self._deadlines = Deadlines()
        self._traces = Traces()
        self._open: set[str] = set()
        operator = settings.operator_user or bus.user
        self._judge = Judge(
            contract, registry, self._sessions, tenure, settings.shards, operator, protocols, self._traces
        )
        self._next_number = 1
        self._now = datetime.now(UTC)
        self._waiting: list[Delivery] = []
        self._reports: deque[tuple[Outgoing, str | None]] = deque()
        self._undeliverable = CountedWarning(_log, "nack_undeliverable")
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._receiving: asyncio.Future[list[Delivery]] | None = None
        self._sending: asyncio.Future[None] | None = None
        self._evicted_at = 0.0

    @property
    def epoch(self) -> int:
        return self._tenure.epoch

    @property
    def batches(self) -> int:
        """Batches confirmed in this tenure."""
        return self._next_number - 1

    @property
    def open_sessions(self) -> int:
        """Sessions of the shard that have not ended."""
        return len(self._open)

    @property
    def outstanding(self) -> Mapping[str, int]:
        """Deliveries without an end, by recipient; a copy, for whoever asks from another thread."""
        return dict(self._judge.outstanding.totals)

    async def serve(self, first: list[Delivery], stop: asyncio.Event) -> None:
        """Serve until `stop`; drains: what the broker has handed over is judged, logged, delivered and acknowledged.

        Raises:
            ShardLost: a log batch was not confirmed, or the broker was silent for too long.
        """
        self._stop = stop
        bind_contextvars(shard=self._tenure.shard, epoch=self._tenure.epoch)
        stopping = asyncio.create_task(stop.wait())
        try:
            await self._recover()
            received = first
            while True:
                crash_point("gate.after_receive")
                await self._run_batch(received)
                if stop.is_set():
                    break
                received = await self._next_inputs(stopping)
            await self._drain()
        finally:
            tasks = [task for task in (stopping, self._receiving, self._sending) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _drain(self) -> None:
        """Judge what the broker has handed over, and what became of the last deliveries."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LONGEST_DRAIN_SECONDS
        await self._finish_sending()
        while loop.time() < until:
            receiving = self._begin_receiving(self._settings.batch_packets)
            await asyncio.wait({receiving}, timeout=HANDED_OVER_SECONDS)
            received = self._take_received()
            if not received and not self._reports:
                break
            await self._run_batch(received)
            await self._finish_sending()

    async def _run_batch(self, received: list[Delivery]) -> None:
        self._check_silence()
        batch = self._open_batch()
        bind_contextvars(batch=batch.number)
        done = await self._judge_inputs(batch, received)
        batch.trace = NO_TRACE
        # Said now: while this batch is sent, the next one takes the waiting inputs up and may not have judged them.
        is_everything = not self._waiting
        await self._judge_reports(batch)
        await self._fire_timers(batch)
        self._end_erased(batch)
        confirm_seconds = await self._log(batch)
        count_batch(batch, len(done), confirm_seconds)
        await self._finish_sending()
        self._sending = asyncio.ensure_future(self._send(batch, done, is_everything))
        self._sending.add_done_callback(self._note_sent)
        await self._evict_sometimes()

    def _open_batch(self) -> Batch:
        # Never back: a later batch is judged at a later moment, whatever the wall clock does.
        self._now = max(self._now, datetime.now(UTC))
        return Batch(self._next_number, self._now)

    async def _judge_inputs(self, batch: Batch, received: list[Delivery]) -> list[Delivery]:
        """Judge in arrival order; what needs a session that cannot be loaded now waits, and nothing else does."""
        done = []
        unloadable: set[str] = set()
        waiting, self._waiting = self._waiting, []
        self._memory.note(sum(len(delivery.message.body) for delivery in received))
        for delivery in (*waiting, *received):
            if batch.is_full():
                self._waiting.append(delivery)
                self._wake.set()
                continue
            if is_probe(delivery.message):
                done.append(delivery)
                continue
            if self._poison and _mark(delivery) in self._poison:
                self._judge.set_aside(batch, delivery.message)
            elif not await self._judge_input(batch, delivery, unloadable):
                self._waiting.append(delivery)
                continue
            done.append(delivery)
        return done

    async def _judge_input(self, batch: Batch, delivery: Delivery, unloadable: set[str]) -> bool:
        """Judge one input; False when it has to wait for its session."""
        try:
            found = read_input(delivery, self._limits)
            needed = set(session_ids(found))
            # What comes after an input that waits for the same session waits behind it.
            if not unloadable.isdisjoint(needed) or not await self._can_load(needed):
                unloadable |= needed
                return False
            self._traces.begin(batch, found, delivery.message)
            self._judge.take(batch, found, delivery.message)
        except Exception as error:
            with bound_contextvars(**ids_of(delivery)):
                raise self._poisoned(_mark(delivery), error) from error
        return True

    def _poisoned(self, mark: Hashable, error: Exception) -> ShardLost:
        """A fault of ours must not stop the shard: leave, for the memory may be half changed, and set this aside."""
        self._poison.add(mark)
        _log.exception("input_unjudgeable", mark=repr(mark))
        return ShardLost(f"an input cannot be judged: {error!r}")

    async def _can_load(self, needed: Iterable[str]) -> bool:
        try:
            for session_id in needed:
                await self._load(session_id)
        except SessionUnloadable:
            return False
        return True

    async def _load(self, session_id: str) -> Session | None:
        if session_id == PRESENCE_SESSION or self._sessions.is_known(session_id):
            return self._sessions.get(session_id)
        try:
            erased: list[Hop] = []
            found = await load_session(self._pool, session_id, self._contract, self._ring, erased)
        except _UNAVAILABLE as error:
            _log.warning("session_unloadable", session_id=session_id, reason=str(error))
            raise SessionUnloadable(f"session {session_id}: {error}") from error
        if isinstance(found, Session):
            self._judge.adopt(found)
            if erased:
                self._erased.append((found, erased))
            for opened in found.open.values():
                if opened.verification == "pending":
                    self._verifier.submit(repeated(found, opened.received))
            return found
        self._sessions.note_absence(session_id, found)
        return None

    async def _judge_reports(self, batch: Batch) -> None:
        """What became of the gate's own deliveries; their sessions may have left the memory meanwhile."""
        reports, self._reports = self._reports, deque()
        for outgoing, failure in reports:
            if outgoing.packet_id is None:
                continue
            try:
                session = await self._load(outgoing.session_id)
            except SessionUnloadable:
                self._reports.append((outgoing, failure))
                continue
            if session is None:
                continue
            if failure is None:
                self._judge.confirm_substrate(batch, session, outgoing.packet_id)
            else:
                self._judge.take_receipts(batch, session, (_failed(outgoing, failure, batch.now),))

    async def _fire_timers(self, batch: Batch) -> None:
        """Each deadline that has passed becomes a packet of the orchestrator, which causes what follows."""
        for session_id in self._deadlines.due(batch.now):
            try:
                session = await self._load(session_id)
            except SessionUnloadable:
                self._deadlines.note(session_id, batch.now + timedelta(seconds=RETRY_SECONDS))
                continue
            if session is None:
                continue
            for kind in sorted(session.document.deadlines, key=session.document.deadlines.__getitem__):
                # Asked again each time: what an earlier timer moved may have set this deadline anew.
                due = session.document.deadlines.get(kind)
                if due is not None and due <= batch.now and not session.is_paused:
                    self._fire(batch, session, kind)
            self._deadlines.note(session_id, self._later(batch, session))

    def _end_erased(self, batch: Batch) -> None:
        """Log the end of deliveries whose packet was erased: there is nothing to deliver any more."""
        erased, self._erased = self._erased, []
        for session, hops in erased:
            _log.warning("deliveries_erased", session_id=session.session_id, hops=len(hops))
            batch.entries += [hop_entry(session.session_id, hop) for hop in hops]
            batch.touched[session.session_id] = session

    def _later(self, batch: Batch, session: Session) -> datetime | None:
        """The session's next deadline; one that was set aside is not looked at in every batch."""
        due = session.next_deadline
        return due if due is None or due > batch.now else batch.now + timedelta(seconds=EVICTION_SECONDS)

    def _fire(self, batch: Batch, session: Session, kind: str) -> None:
        mark = ("timer", session.session_id, session.step, kind)
        if mark in self._poison:
            return
        try:
            self._judge.judge_own(batch, timer(session, kind, batch.now, self._contract))
        except Exception as error:
            raise self._poisoned(mark, error) from error

    async def _log(self, batch: Batch) -> float | None:
        """One log batch in flight. Refused is definite: publish the same one again; anything else: shard lost.

        Returns the seconds until it was confirmed; None when there was nothing to log.
        """
        for session_id, session in batch.touched.items():
            self._deadlines.note(session_id, session.next_deadline)
            (self._open.discard if session.is_terminal else self._open.add)(session_id)
        batch.entries += [flood_entry(user, flood) for user, flood in batch.floods.items()]
        if not batch.entries:
            return None
        shard, epoch = self._tenure.shard, self._tenure.epoch
        with logged(batch, shard, epoch) as trace:
            sealed = batch.seal(shard, epoch)
            publication = publications.log_batch(sealed, self._holder, self._tenure.user, trace)
            began = perf_counter()
            await self._publish_log(publication)
            confirm_seconds = perf_counter() - began
        self._next_number += 1
        self._sessions.touch(batch.touched, batch.number)
        crash_point("gate.after_log_confirm")
        tell_judged(batch.entries)
        for request in batch.verifications:
            self._verifier.submit(request)
        return confirm_seconds

    async def _publish_log(self, publication: Publication) -> None:
        while True:
            self._check_silence()
            try:
                return await self._inputs.publish(publication)
            except (PublishRefused, PublishUnroutable) as error:
                _log.warning("log_batch_refused", reason=str(error))
                if self._stop.is_set():
                    raise ShardLost("stopped while the broker refused the log batch") from error
                await asyncio.sleep(RETRY_SECONDS)

    async def _send(self, batch: Batch, done: Sequence[Delivery], is_everything: bool) -> None:
        await self._deliver(batch)
        end_spans(batch)
        crash_point("gate.after_delivery_confirm")
        crash_point("gate.before_acknowledge")
        await deliveries.acknowledge(self._inputs, done, multiple=is_everything)

    async def _deliver(self, batch: Batch) -> None:
        bound = self._contract.limits.outstanding_deliveries
        await deliveries.send(self._bus, batch.outgoing, self._report, self._stop, bound)

    async def _finish_sending(self) -> None:
        """Deliveries keep the order of their batches."""
        if self._sending is not None:
            sending, self._sending = self._sending, None
            await sending

    @property
    def _last_sent(self) -> int:
        """The last batch whose deliveries the broker has confirmed."""
        is_sending = self._sending is not None and not self._sending.done()
        return self.batches - 1 if is_sending else self.batches

    def _report(self, outgoing: Outgoing, failure: str | None) -> None:
        is_substrate = outgoing.recipient == SUBSTRATE_RECIPIENT
        if failure is not None and outgoing.packet_id is None:
            nack_id = outgoing.publication.message.message_id
            self._undeliverable.note(packet_id=nack_id, agent_id=outgoing.recipient, reason=failure)
        elif failure is not None or is_substrate:
            self._reports.append((outgoing, failure))
            self._wake.set()
        else:
            self._judge.confirm_delivery(outgoing)

    async def _next_inputs(self, stopping: "asyncio.Task[Literal[True]]") -> list[Delivery]:
        """Inputs, or nothing when a timer, a report of a delivery, a waiting input or the stop calls first."""
        received = await self._receive(stopping, self._seconds_to_wait())
        if received and not stopping.done() and all(is_receipts(one.message) for one in received):
            # Nobody waits for receipts but a barrier, and a packet that comes now would wait for their log batch.
            received += await self._receive(stopping, self._settings.receipts_linger_seconds, len(received))
        return received

    async def _receive(
        self, stopping: "asyncio.Task[Literal[True]]", patience: float, already: int = 0
    ) -> list[Delivery]:
        """What the broker has handed over, within `patience` seconds; `already` were taken for the same batch."""
        receiving = self._begin_receiving(max(1, self._settings.batch_packets - already))
        if not receiving.done():
            waking = asyncio.ensure_future(self._wake.wait())
            try:
                watched: set[asyncio.Future[Any]] = {receiving, stopping, waking}
                await asyncio.wait(watched, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waking.cancel()
        self._wake.clear()
        return self._take_received()

    def _begin_receiving(self, most: int) -> "asyncio.Future[list[Delivery]]":
        """One call at a time; what nobody has taken yet is there for the next batch."""
        if self._receiving is None:
            self._receiving = asyncio.ensure_future(self._inputs.receive(most, self._settings.batch_bytes))
        return self._receiving

    def _take_received(self) -> list[Delivery]:
        if self._receiving is None or not self._receiving.done():
            return []
        receiving, self._receiving = self._receiving, None
        return receiving.result()

    def _seconds_to_wait(self) -> float:
        """Until the next deadline; never longer than between two questions, so that a silent broker is noticed."""
        longest = RETRY_SECONDS if self._waiting or self._reports else self._fence.question_seconds
        due = self._deadlines.next
        if due is None:
            return longest
        return min(longest, max(0.0, (due - datetime.now(UTC)).total_seconds()))

    def _note_sent(self, sending: "asyncio.Future[None]") -> None:
        """A failure of the sending task must not wait for the next input."""
        if not sending.cancelled() and sending.exception() is not None:
            self._wake.set()

    def _check_silence(self) -> None:
        """Self-fencing: a broker that was silent for longer than a heartbeat may have given the shard away."""
        silence = self._inputs.longest_silence
        if silence > self._fence.silence_seconds:
            raise ShardLost(f"the broker was silent for {silence:.1f} s")

    async def _recover(self) -> None:
        """Deliver and verify again what has no end yet, and answer again what was held and then refused."""
        batch = self._open_batch()
        for found in await open_sessions(self._pool, self._tenure.shard):
            if found.has_work:
                await self._load(found.session_id)
            self._deadlines.note(found.session_id, found.next_deadline)
            if not found.is_terminal:
                self._open.add(found.session_id)
        for session in self._sessions.loaded():
            self._judge.redeliver(batch, session)
            await asyncio.sleep(0)  # the broker is read meanwhile: its silence would count as a lost shard
        for denial in await unanswered_denials(self._pool, self._tenure.shard, batch.now, self._limits, self._ring):
            self._judge.answer_denial(batch, denial)
        await self._deliver(batch)
        _log.info("shard_recovered", shard=self._tenure.shard, deliveries=len(batch.outgoing))

    async def _evict_sometimes(self) -> None:
        """Forget sessions whose last batch is committed; a database that is away only postpones it.

        What a flood has left free goes back to the system as well.
        """
        now = asyncio.get_running_loop().time()
        if now - self._evicted_at < EVICTION_SECONDS:
            return
        self._evicted_at = now
        self._memory.after_flood()
        if not self._sessions.has_surplus(self._settings.sessions_in_memory):
            return
        try:
            head = await read_head(self._pool, self._tenure.shard)
        except _UNAVAILABLE:
            return
        if head.epoch == self._tenure.epoch:
            self._sessions.evict(min(head.batch_no, self._last_sent), self._settings.sessions_in_memory)


def _mark(delivery: Delivery) -> Hashable:
    return sha256(delivery.message.body).digest()


def _failed(outgoing: Outgoing, failure: str, now: datetime) -> Receipt:
    """The receipt of a delivery that the broker refused."""
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

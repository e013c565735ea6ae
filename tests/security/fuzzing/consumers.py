"""Every kind of consumer of the product, over any bus: its own code, with what it needs in memory."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import ClassVar
from uuid import uuid4

from tests.security.fuzzing import good_messages
from tests.security.fuzzing.good_messages import OPERATOR, ORCHESTRATOR, delivered, registrations, sent, with_death
from tests.support.hostile_messages import Draft, entry
from tests.support.traffic.packets import make_idea, make_packet, make_start

from apc_agents import Agent, HandlerContext, Worker
from apc_bus import headers
from apc_bus.concurrency import Health
from apc_bus.last_resort import LastResort
from apc_bus.port import Bus, Delivery, Message
from apc_bus.settings import WorkerSettings
from apc_bus.topology import DEAD_QUEUE, SUBSTRATE_STREAM, agent_queue, gate_queue, log_queue
from apc_cli.commands.packet import _as_json, _as_line
from apc_contracts import IdeaPayload, Packet, PacketType, load_contract
from apc_contracts.contract.collection import Contracts
from apc_contracts.errors import PacketRefused
from apc_contracts.limits import DEFAULT_LIMITS
from apc_contracts.protocol.ledger import ProtocolLedger
from apc_contracts.wire.parsing import ReceivedPacket
from apc_log.batch import (
    LOG_BATCH_TYPE,
    LOG_BATCH_VERSION,
    ConflictEntry,
    Entry,
    EpochOpen,
    LogBatch,
    PacketEntry,
    encode,
)
from apc_log.entries import Placed, leaves_of, rows_of
from apc_orchestrator.batch import Batch
from apc_orchestrator.dead_letters import read_dead_letters
from apc_orchestrator.judging.inputs import DeadInput, is_probe, read_inputs, session_ids
from apc_orchestrator.judging.judge import Judge
from apc_orchestrator.judging.memory import ShardMemory
from apc_orchestrator.judging.refusals import flood_entry
from apc_orchestrator.judging.registry import Registry
from apc_orchestrator.lease import Lease
from apc_persister.errors import LogStopped
from apc_persister.intake import UNSTORABLE, BatchIntake, Head, read_message, unstorable
from apc_persister.transaction import ENTRY_ERRORS

INPUTS_OF_A_LEASE = 2_000
"""Then a gate begins with an empty memory: what was refused has a quota, and a session grows with its packets."""


class Consumer:
    """One kind of consumer. What it finds wrong stands in `problems`, what it must not lose in `lost`."""

    name: ClassVar[str]
    queues: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        self.opening = make_start()
        self.handled: set[str] = set()
        """The ids of good messages that have come to their end."""
        self.set_aside = 0
        """Inputs that only a last resort would have kept from ending the consumer."""
        self.problems: list[str] = []

    def good(self) -> list[Draft]:
        """Return the messages that hostile ones are made of."""
        raise NotImplementedError

    def sentinel(self) -> tuple[str, Draft]:
        """Return a good message and its id: the consumer handles it if it is alive."""
        raise NotImplementedError

    def finish(self, draft: Draft, number: int) -> None:
        """Put in what the broker says of the message of this number."""

    def published(self, body: bytes) -> None:
        """Note what the consumer publishes."""

    async def run(self, bus: Bus) -> None:
        """Consume until cancelled."""
        raise NotImplementedError

    def fail(self, what: str, error: BaseException, message: Message) -> None:
        """Note an error with the message that made it."""
        self.problems.append(f"{what}: {error!r} at {message!r}"[:600])


class GateConsumer(Consumer):
    """The inputs of a gate: read, judged, logged and answered as a shard's server does, without its database."""

    name = "gate"
    queues = (gate_queue(0),)

    def good(self) -> list[Draft]:
        return good_messages.for_gate(self.opening)

    def sentinel(self) -> tuple[str, Draft]:
        packet = make_packet("red-1", make_idea(), ("sentinel",), parent=self.opening)
        return str(packet.packet_id), Draft.of(sent(packet))

    async def run(self, bus: Bus) -> None:
        left = 0
        async with bus.subscribe(gate_queue(0)) as inputs:
            while True:
                received = await inputs.receive()
                if left <= 0:
                    left = INPUTS_OF_A_LEASE
                    self._begin()
                left -= len(received)
                batch = Batch(self._number, datetime.now(UTC))
                self._number += 1
                for delivery in received:
                    self._judge_input(batch, delivery)
                await self._log(bus, batch)
                await inputs.ack(received[-1], multiple=True)

    def _begin(self) -> None:
        self._number = 1
        registry = Registry(ORCHESTRATOR, {}, set())
        for one in registrations():
            registry.apply(one)
        contracts = Contracts(load_contract())
        protocols = ProtocolLedger(contracts.default.effectiveness)
        lease = Lease(0, 1, "0.0", ORCHESTRATOR, uuid4())
        self._memory = ShardMemory(contracts, lease, 1, OPERATOR, registry, protocols)
        self._judge = Judge(self._memory)
        message = sent(self.opening, "agent.librarian")
        self._take(Batch(self._number, datetime.now(UTC)), Delivery(message, 0, "0", False))

    def _judge_input(self, batch: Batch, delivery: Delivery) -> None:
        if is_probe(delivery.message):
            return
        try:
            self._take(batch, delivery)
        except Exception as error:
            self.set_aside += 1
            self.fail("judging", error, delivery.message)

    def _take(self, batch: Batch, delivery: Delivery) -> None:
        message, before = delivery.message, len(batch.entries)
        inputs = read_inputs(delivery, DEFAULT_LIMITS)
        for found in inputs:
            for session_id in session_ids(found):
                if not self._memory.sessions.is_known(session_id):
                    self._memory.sessions.note_absence(session_id, {})
            self._memory.traces.begin(batch, found, message)
            self._judge.take(batch, found, message)
        if isinstance(inputs[-1], PacketRefused | DeadInput) and not batch.floods:
            digest = sha256(message.body).digest()
            if digest not in set(_digests(batch.entries[before:])):
                self.problems.append(f"without a trace: {message!r}"[:600])
        if isinstance(inputs[-1], ReceivedPacket):
            self.handled.add(str(inputs[-1].packet.packet_id))

    async def _log(self, bus: Bus, batch: Batch) -> None:
        batch.entries += [flood_entry(user, flood) for user, flood in batch.floods.items()]
        message = Message(encode(batch.seal(0, 1)), "m", LOG_BATCH_TYPE, user_id=ORCHESTRATOR)
        received = read_message(0, Delivery(message, 1, "0", False))
        if not isinstance(received.content, LogBatch):
            self.problems.append(f"a log writer cannot read what was judged: {received.content!r}"[:600])
        _store(batch.entries, batch.now)
        for error in await bus.publish_all([one.publication for one in batch.outgoing]):
            if error is not None:
                self.problems.append(f"an answer cannot be sent: {error!r}")


class DeadLetterConsumer(Consumer):
    """The reader of the dead queue, as the orchestrator runs it."""

    name = "dead letters"
    queues = (DEAD_QUEUE,)

    def good(self) -> list[Draft]:
        return good_messages.dead(self.opening)

    def sentinel(self) -> tuple[str, Draft]:
        packet = make_packet("red-1", make_idea(), ("sentinel",), parent=self.opening)
        draft = with_death(Draft.of(delivered(packet)), agent_queue("sentinel", False), "rejected")
        return str(packet.packet_id), draft

    def published(self, body: bytes) -> None:
        if body.startswith(b'[{"packet_id":"'):
            self.handled.add(body[15:51].decode(errors="replace"))

    async def run(self, bus: Bus) -> None:
        health = _Health(self.problems)
        await read_dead_letters(bus, 1, DEFAULT_LIMITS, health, LastResort(None))


class WorkerConsumer(Consumer):
    """A worker with both of its queues and the substrate."""

    name = "worker, substrate listener"
    queues = (agent_queue("sentinel", True), agent_queue("sentinel", False), SUBSTRATE_STREAM)

    def good(self) -> list[Draft]:
        return good_messages.for_worker(self.opening)

    def sentinel(self) -> tuple[str, Draft]:
        session = str(uuid4())
        packet = make_packet("red-1", make_idea(), ("sentinel",), session_id=session)
        # Without a mark: a forged one of a later epoch fences all that come from an earlier one, as it should.
        return str(packet.packet_id), Draft.of(delivered(packet, **{headers.MARK: None}))

    def finish(self, draft: Draft, number: int) -> None:
        draft.entries = [one for one in draft.entries if not one.startswith(b"\x0fx-stream-offset")]
        draft.entries.append(entry(b"x-stream-offset", 2**40 + number))

    async def run(self, bus: Bus) -> None:
        agent = Agent("sentinel", role="role", swarm="watch")

        @agent.on(PacketType.IDEA)
        async def take(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
            self.handled.add(str(packet.packet_id))

        @agent.on_substrate
        async def hear(packet: Packet, ctx: HandlerContext) -> None:
            self.handled.add(str(packet.packet_id))

        await Worker(agent, bus, settings=WorkerSettings(shards=1, database_url=None)).run(asyncio.Event())


class LogConsumer(Consumer):
    """A log writer up to its database: messages read, weighed, made to rows and hashed."""

    name = "log writer"
    queues = (log_queue(0),)

    def good(self) -> list[Draft]:
        return good_messages.for_log()

    def sentinel(self) -> tuple[str, Draft]:
        holder = uuid4()
        body = encode(EpochOpen(LOG_BATCH_VERSION, 0, holder))
        return str(holder), Draft.of(Message(body, f"{holder}.open", "epoch_open", user_id=ORCHESTRATOR))

    async def run(self, bus: Bus) -> None:
        async with bus.subscribe(log_queue(0)) as messages:
            while True:
                received = await messages.receive()
                for delivery in received:
                    try:
                        self._write(delivery)
                    except Exception as error:
                        self.fail("writing", error, delivery.message)
                await messages.ack(received[-1], multiple=True)

    def _write(self, delivery: Delivery) -> None:
        read = read_message(0, delivery)
        intake = BatchIntake(Head(0, epoch=1), {}, {})
        try:
            intake.take(read, datetime.now(UTC))
        except LogStopped:
            return  # on purpose: a batch of the gate that does not follow waits for an operator
        self.handled |= {str(one.holder) for one in intake.opened}
        _store_placed(intake.placed)


class ConsoleConsumer(Consumer):
    """What `apc packet substrate` prints of the stream."""

    name = "console"
    queues = (SUBSTRATE_STREAM,)
    finish = WorkerConsumer.finish

    def good(self) -> list[Draft]:
        return good_messages.for_worker(self.opening)

    def sentinel(self) -> tuple[str, Draft]:
        packet = make_packet("red-1", make_idea(), ("_substrate",), parent=self.opening)
        return str(packet.packet_id), Draft.of(delivered(packet))

    async def run(self, bus: Bus) -> None:
        async with bus.read_substrate("first") as stream:
            while True:
                received = await stream.receive()
                for delivery in received:
                    try:
                        line = _as_line(delivery)
                        _as_json(delivery).encode()
                    except Exception as error:
                        self.fail("printing", error, delivery.message)
                        continue
                    if line.isprintable() and "unreadable" not in line:
                        self.handled.add(delivery.message.message_id)
                await stream.ack(received[-1], multiple=True)


CONSUMERS: tuple[type[Consumer], ...] = (
    GateConsumer,
    DeadLetterConsumer,
    WorkerConsumer,
    LogConsumer,
    ConsoleConsumer,
)


class _Health(Health):
    """Notes what fails, also when it works again later."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__()
        self._noted = problems

    def fail(self, task: object, reason: str) -> None:
        self._noted.append(f"{task}: {reason}")


def _digests(entries: Iterable[object]) -> Iterable[bytes]:
    for one in entries:
        if isinstance(one, ConflictEntry):
            yield (
                one.second_hash if one.second_hash is not None and one.first_hash is None else sha256(one.raw).digest()
            )
        elif isinstance(one, PacketEntry):
            yield one.packet_hash


def _store(entries: Sequence[Entry], now: datetime) -> None:
    _store_placed([Placed((0, number, 1, 1), now, one) for number, one in enumerate(entries, 1)])


def _store_placed(placed: Sequence[Placed]) -> None:
    """Make the rows of these entries and hash them, one that cannot be stored as its conflict, as the writer does."""
    now = datetime.now(UTC)
    try:
        leaves_of(rows_of(placed), now)
    except ENTRY_ERRORS:
        for one in placed:
            try:
                leaves_of(rows_of([one]), now)
            except ENTRY_ERRORS as error:
                leaves_of(rows_of([one._replace(entry=unstorable(one.entry, UNSTORABLE, error))]), now)

"""After every act of an operator and every receipt, the projection of a session is what its entries say.

The sessions stay open: a verification of the log at any moment finds no difference.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import msgspec
import orjson
import pytest
from tests.contracts.session.room import REGISTERED, Room, contract_of, registry
from tests.contracts.session.walk import Walk
from tests.orchestrator.shard.test_loading import JudgedSimulation
from tests.support.log.batch_records import BatchRecords

from apc_bus.port import Delivery, Message
from apc_contracts import DecisionPayload, ErrorPayload, Packet, RetractionPayload, SignalPayload, load_contract
from apc_contracts.limits import DEFAULT_LIMITS
from apc_contracts.payloads.session_signals import WakeSpec
from apc_contracts.replay.entries import ReplayDiffers, as_json
from apc_contracts.replay.session_replay import SessionReplay
from apc_contracts.session.receipts import JUDGED_AT
from apc_contracts.session.task import STALL, STALL_MS
from apc_contracts.vocabulary import HANDLER_ERROR, ORCHESTRATOR, UNSETTLED, CommitmentLevel, Signal
from apc_contracts.wire.receipts import (
    SET_ASIDE,
    EffectEntry,
    EffectReport,
    Receipt,
    ReceiptKind,
    Usage,
    encode_receipts,
)
from apc_log.batch import HopEntry
from apc_orchestrator.batch import Batch
from apc_orchestrator.judging.inputs import ORCHESTRATOR_KINDS, read_input

CONTRACT = contract_of("name: watched\nextends: task\n")
SESSIONS, ACTS = int(os.environ.get("APC_TEST_VERIFIED_SESSIONS", "20")), 60
AGENTS = ("desk", "logs", "metrics", "fixer", "helper", "scribe")
ENDS = (
    ReceiptKind.OUTCOME,
    ReceiptKind.REJECT,
    ReceiptKind.RETRY,
    ReceiptKind.DEAD_LETTERED,
    ReceiptKind.DEAD_LETTERED,
    ReceiptKind.EXPIRED,
)
REASONS = (None, "handler_error", "delivery_limit", "overflow", "no consumer", SET_ASIDE)
KEYS = ("refund", "mail")


@dataclass
class VerifiedSimulation(JudgedSimulation):
    """A simulation whose log is played again after each act."""

    joined: Batch | None = None
    verified: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.replay = SessionReplay("s-1", {self.contract.hash: self.contract}.get)

    @contextmanager
    def one_batch(self) -> Iterator[None]:
        """Judge all inputs in one batch of the log."""
        joined = self.joined = super()._begin()
        yield
        self.joined = None
        super()._finish(joined)

    def report(self, *receipts: Receipt, user: str) -> None:
        """Take receipts as this broker user sends them."""
        message = Message(encode_receipts(list(receipts)), "m", type="receipts", user_id=user)
        batch = self._begin()
        self.judge.take(batch, read_input(Delivery(message, 1, "0", False), DEFAULT_LIMITS), message)
        self._finish(batch)

    def verify(self) -> None:
        """Compare the session with what its entries say. Raises ReplayDiffers."""
        for batch in self.batches[self.verified :]:
            for entries in BatchRecords([batch.seal(0, 1)]).entries.values():
                self.replay.take(entries)
        self.verified = len(self.batches)
        self.replay.check_document(as_json(self.session.document), (0, self.verified))
        replayed = self.replay.session
        assert replayed is not None
        assert replayed.open_deliveries == self.session.open_deliveries

    def _begin(self) -> Batch:
        return super()._begin() if self.joined is None else self.joined

    def _finish(self, batch: Batch) -> None:
        if batch is self.joined:
            self.opened = self.sessions.get("s-1")
        else:
            super()._finish(batch)


class Desk:
    """Random acts of the agents of a room and of its operator."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.simulation = VerifiedSimulation(CONTRACT, registry=registry(), schemas=REGISTERED)
        self.room = Room(self.simulation)
        self.sent: list[Packet] = []
        self.questions: list[Packet] = []
        self.seen: list[tuple[Packet, str, int]] = []

    def step(self) -> None:
        """One act, or several in one batch; the clock goes on before each."""
        acts: tuple[tuple[int, Callable[[], None]], ...] = (
            (6, self.handle),
            (6, self.talk),
            (8, self.report),
            (6, self.settle_dead),
            (3, self.report_effect),
            (2, self.finish_everything),
            (2, self.ask),
            (2, self.answer),
            (2, self.wake),
            (2, self.complain),
            (2, self.retract),
            (2, self.pause_or_resume),
            (1, self.decide),
            (3, self.wait),
        )
        (act,) = self.random.choices([act for _, act in acts], [weight for weight, _ in acts])
        self.simulation.now += timedelta(milliseconds=self.random.randint(1, 4_000))
        if act in (self.report, self.settle_dead, self.report_effect) and self.random.random() < 0.2:
            with self.simulation.one_batch():
                act()
                self.random.choice((self.report, self.settle_dead, self.report_effect))()
        else:
            act()

    def receipt(self, packet: Packet, agent: str, attempt: int, kind: ReceiptKind, **fields: Any) -> Receipt:
        """A receipt by a clock that is not the gate's."""
        at = self.simulation.now - timedelta(milliseconds=self.random.randint(-2_000, 2_000))
        names: Any = {"packet_id": packet.packet_id, "session_id": "s-1", "recipient": agent, "attempt": attempt}
        return Receipt(**names, kind=kind, at=at, **fields)

    def deliveries(self) -> list[tuple[Packet, str, int]]:
        """What was delivered so far; late and repeated receipts name it again."""
        for agent, inbox in self.simulation.inboxes.items():
            self.seen += [(packet, agent, attempt) for packet, attempt in inbox]
            inbox.clear()
        self.seen = self.seen[-30:]
        return self.seen

    def talk(self) -> None:
        to = self.random.choice((("logs", "metrics"), ("fixer", "helper"), "scribe", "desk", ORCHESTRATOR))
        routing = {"requires_ack": self.random.random() < 0.2, "ack_timeout_ms": 5_000, "retry_limit": 1}
        sender = self.random.choice(AGENTS)
        sent = self.room.message(sender, "finding/1", {"service": str(self.random.random())}, to, routing=routing)
        self.sent.append(sent[0])

    def handle(self) -> None:
        """One delivery as a worker handles it."""
        if not self.deliveries():
            return
        packet, agent, attempt = self.seen.pop(self.random.randrange(len(self.seen)))
        usage = self.random.choice((None, Usage(tokens=self.random.randint(0, 200_000))))
        handled = (ReceiptKind.DELIVERY_ACK, ReceiptKind.CONSUMER_APPLY)
        receipts = [self.receipt(packet, agent, attempt, kind) for kind in handled]
        receipts.append(self.receipt(packet, agent, attempt, ReceiptKind.OUTCOME, usage=usage))
        self.simulation.report(*receipts, user=f"agent.{agent}")

    def finish_everything(self) -> None:
        while self.deliveries():
            self.handle()

    def report(self) -> None:
        """A receipt that comes late, twice or never from a worker."""
        if not self.deliveries():
            return
        packet, agent, attempt = self.random.choice(self.seen)
        kind = self.random.choice((ReceiptKind.DELIVERY_ACK, *ENDS))
        fields: dict[str, Any] = {"usage": self.random.choice((None, Usage(tokens=5, cost=0.5)))}
        if kind is ReceiptKind.RETRY:
            fields["after_ms"] = self.random.choice((None, 500, 20_000))
        if kind in (ReceiptKind.DEAD_LETTERED, ReceiptKind.REJECT, ReceiptKind.RETRY):
            fields["error"] = self.random.choice(REASONS)
        is_own = kind in ORCHESTRATOR_KINDS or self.random.random() < 0.1
        if (is_own and kind is ReceiptKind.EXPIRED) or kind in ORCHESTRATOR_KINDS:
            self.simulation.report(self.receipt(packet, agent, attempt, kind, **fields), user=ORCHESTRATOR)
        else:
            self.simulation.report(self.receipt(packet, agent, attempt, kind, **fields), user=f"agent.{agent}")

    def settle_dead(self) -> None:
        """The operator requeues or discards a dead letter, or what they take for one."""
        dead = [
            (opened.packet, agent, progress.attempt)
            for opened in self.simulation.session.open.values()
            for agent, progress in opened.recipients.items()
            if progress.state == "DEAD_LETTERED"
        ]
        if self.random.random() < 0.1:
            dead = self.deliveries()
        if not dead:
            return
        kind = self.random.choice((ReceiptKind.REQUEUE, ReceiptKind.DISCARD, ReceiptKind.DISCARD))
        self.simulation.report(
            self.receipt(*self.random.choice(dead), kind, by=self.random.choice((None, "desk"))), user="agent.desk"
        )

    def report_effect(self) -> None:
        """An entry about an effect, by the agent or by the operator who has looked."""
        if not self.deliveries():
            return
        packet, agent, attempt = self.random.choice(self.seen)
        entry, claim = self.random.choice(tuple(EffectEntry)), UUID(int=self.random.randint(1, 3))
        told = EffectReport(key=self.random.choice(KEYS), claim=claim, entry=entry)
        by = "desk" if entry in (EffectEntry.RELEASED, EffectEntry.SETTLED) and self.random.random() < 0.5 else None
        user = "agent.desk" if by else f"agent.{agent}"
        self.simulation.report(self.receipt(packet, agent, attempt, ReceiptKind.EFFECT, effect=told, by=by), user=user)

    def ask(self) -> None:
        self.questions.append(self.room.ask(minutes=self.random.choice((1, 60)))) if self.is_running() else None

    def answer(self) -> None:
        if self.questions:
            self.room.answer(self.random.choice(self.questions), approves=self.random.random() < 0.5)

    def wake(self) -> None:
        wake = WakeSpec(key=self.random.choice("ab"), after_ms=self.random.choice((1_000, 30_000)))
        sender = self.random.choice(AGENTS)
        self.room.send(sender, SignalPayload(signal=Signal.WAKE, wake=wake), ORCHESTRATOR)

    def complain(self) -> None:
        """An ERROR of a worker: its delivery failed, or nobody knows how it ended."""
        if not self.deliveries():
            return
        packet, agent, _ = self.random.choice(self.seen)
        code = self.random.choice((HANDLER_ERROR, *sorted(UNSETTLED)))
        if code == HANDLER_ERROR and self.random.random() < 0.8:
            return
        error = ErrorPayload(error_code=code, message="m", retryable=False)
        self.room.send(agent, error, packet.sender.agent_id, parent=packet)

    def retract(self) -> None:
        if self.sent:
            target = self.random.choice(self.sent)
            payload = RetractionPayload(target_packet_id=target.packet_id, reason="wrong")
            self.room.send(self.random.choice((target.sender.agent_id, "desk")), payload, "scribe")

    def pause_or_resume(self) -> None:
        signal = Signal.RESUME if self.simulation.session.is_paused else Signal.PAUSE
        self.room.send("desk", SignalPayload(signal=signal), ORCHESTRATOR)

    def decide(self) -> None:
        if self.random.random() < 0.1:
            self.room.send("desk", SignalPayload(signal=Signal.STOP), ORCHESTRATOR)
        elif self.random.random() < 0.2:
            fields: dict[str, Any] = {"recommendation": "go", "priority_distribution": {}, "next_actions": ()}
            decision = DecisionPayload(decision_id="d", commitment_level=CommitmentLevel.DONE, **fields)
            self.room.send("scribe", decision, ORCHESTRATOR)

    def wait(self) -> None:
        self.simulation.pass_time(seconds=self.random.choice((1, 5, 20, 61)))

    def is_running(self) -> bool:
        return not self.simulation.session.is_terminal and not self.simulation.session.is_paused


@pytest.mark.parametrize("seed", range(SESSIONS))
def test_an_open_session_verifies_after_every_act(seed: int) -> None:
    desk = Desk(seed)
    for _ in range(ACTS):
        desk.step()
        desk.simulation.verify()
        if desk.simulation.session.is_terminal:
            break


@pytest.mark.parametrize("seed", range(SESSIONS // 4))
def test_an_open_session_of_research_verifies_after_every_act(seed: int) -> None:
    simulation = VerifiedSimulation(load_contract())
    walk = Walk(simulation, seed)
    for _ in range(ACTS):
        walk.step()
        simulation.verify()


class Letter:
    """A session whose last delivery is a dead letter that the operator discards, so that nothing is open."""

    def __init__(self) -> None:
        self.desk = Desk(0)
        self.simulation = self.desk.simulation
        self.act(self.desk.finish_everything)
        self.packet, _ = self.desk.room.message("desk", "finding/1", {"service": "api"}, "fixer")
        ended = self.desk.receipt(self.packet, "fixer", 1, ReceiptKind.DEAD_LETTERED, error="no consumer")
        self.act(lambda: self.simulation.report(ended, user=ORCHESTRATOR))
        self.act(self.desk.finish_everything)

    def act(self, act: Callable[[], None]) -> None:
        self.simulation.now += timedelta(seconds=20)
        act()
        self.simulation.verify()

    def discard(self) -> None:
        receipt = self.desk.receipt(self.packet, "fixer", 1, ReceiptKind.DISCARD, error="discarded by desk", by="desk")
        self.simulation.now += timedelta(seconds=20)
        self.simulation.report(receipt, user="agent.desk")

    @property
    def stall(self) -> Any:
        return self.simulation.session.document.deadlines.get(STALL)


def test_the_stall_timer_that_a_discard_starts_is_in_the_log() -> None:
    letter = Letter()
    assert letter.stall is None, "the dead letter is waited for"
    letter.discard()
    assert letter.stall == letter.simulation.now + timedelta(milliseconds=STALL_MS)
    letter.simulation.verify()


def hops_of(batch: Batch, change: Callable[[dict[str, Any]], Any]) -> Batch:
    """Return the batch with other metadata of its hops."""
    entries = [
        msgspec.structs.replace(entry, metadata=orjson.dumps(change(orjson.loads(entry.metadata or b"{}"))))
        if isinstance(entry, HopEntry)
        else entry
        for entry in batch.entries
    ]
    return replace(batch, entries=entries)


def test_an_older_log_that_does_not_have_that_time_verifies() -> None:
    letter = Letter()
    letter.discard()
    last = letter.simulation.batches[-1]
    letter.simulation.batches[-1] = hops_of(
        last, lambda said: {name: value for name, value in said.items() if name != JUDGED_AT}
    )
    letter.simulation.verify()
    document = as_json(letter.simulation.session.document)
    with pytest.raises(ReplayDiffers, match=r"sessions\.document\.step"):
        letter.simulation.replay.check_document(document | {"step": 99}, (0, 1))


@pytest.mark.parametrize("altered", ["yesterday", 7, "2026-01-01T00:00:00+00:00"])
def test_a_time_that_was_altered_is_found(altered: object) -> None:
    letter = Letter()
    letter.discard()
    letter.simulation.batches[-1] = hops_of(letter.simulation.batches[-1], lambda said: said | {JUDGED_AT: altered})
    with pytest.raises(ReplayDiffers):
        letter.simulation.verify()

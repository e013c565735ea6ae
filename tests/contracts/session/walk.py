"""Random walks through a session: legal and hostile inputs in any order, the same for the same seed."""

from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from apc_contracts import (
    AckPayload,
    ArbitrationPayload,
    ClaimPayload,
    DecisionPayload,
    ErrorPayload,
    IdeaPayload,
    Packet,
    ProofBundle,
    RetractionPayload,
    SignalPayload,
)
from apc_contracts.payloads.by_type import Candidate, ExpectedImpact, Payload
from apc_contracts.payloads.session_signals import Budgets
from apc_contracts.payloads.task_ir import ConstraintKind, IrConstraint
from apc_contracts.vocabulary import ALL_RECIPIENTS, ORCHESTRATOR, AckStatus, Channel, CommitmentLevel, RunPhase, Signal
from apc_contracts.wire.receipts import ReceiptKind

from .conftest import HANDLED, Simulation
from .path.way import brief, evaluation, lineage, model, transfer

AGENTS = ("librarian", "red-1", "blue-1", "sentinel", "judge")
DELIVERY_KINDS = (
    ReceiptKind.DELIVERY_ACK,
    ReceiptKind.CONSUMER_APPLY,
    ReceiptKind.OUTCOME,
    ReceiptKind.REJECT,
    ReceiptKind.RETRY,
    ReceiptKind.RETRY_DUE,
    ReceiptKind.EXPIRED,
    ReceiptKind.DEAD_LETTERED,
    ReceiptKind.REQUEUE,
    ReceiptKind.DISCARD,
)


class Walk:
    """One walk. `seen` holds every delivery there was, so that receipts can come late and twice."""

    def __init__(self, simulation: Simulation, seed: int) -> None:
        self.simulation = simulation
        self.random = Random(seed)
        self.seen: list[tuple[Packet, str, int]] = []
        self.sent: list[Packet] = []
        self.start = simulation.start(
            packet_id=self.new_id(),
            generation_limit=self.random.choice((0, 1, 2, 12, 22)),
            max_rounds=self.random.choice((1, 2, 3)),
            search_ms=self.random.choice((None, 60_000)),
            budgets=self.random.choice((Budgets(), Budgets(packets=60), Budgets(wall_ms=400_000))),
        )

    @property
    def session(self) -> Any:
        return self.simulation.session

    def new_id(self) -> UUID:
        return UUID(int=self.random.getrandbits(128), version=4)

    def step(self) -> None:
        """One random act: half of the time one that carries the session on."""
        acts: tuple[tuple[int, Callable[[], None]], ...] = (
            (8, self.carry_on),
            (8, self.handle_everything),
            (4, self.send_something),
            (4, self.report_something),
            (1, self.pass_some_time),
            (1, self.pause_or_resume),
            (3, self.ask_or_answer),
            (1, self.give_or_end_a_task),
        )
        (act,) = self.random.choices([act for _, act in acts], [weight for weight, _ in acts])
        act()

    def carry_on(self) -> None:
        """What the reference swarm would do now."""
        state = self.session.state
        if state == "SESSION_OPEN":
            for agent, keys in (("red-1", "ab"), ("blue-1", "cd")):
                self.send("librarian", brief(), agent, keys=tuple(keys))
        elif state == "DIFFERENTIATED_RESEARCH":
            for agent in ("red-1", "blue-1"):
                self.send(agent, SignalPayload(signal=Signal.SYNC), ORCHESTRATOR)
        elif state == "ARBITRATION":
            self.simulation.pass_time(seconds=3)
        elif state == "EXECUTION":
            self.execute()
        elif state == "VALIDATION":
            artifact = self.session.document.round_state.execution.artifact
            to = self.random.choice((ORCHESTRATOR, "librarian", ("librarian", "red-1")))
            self.send("sentinel", evaluation(self.random.choice((0.2, 0.8))), to, parent=artifact)
        else:
            for agent in ("red-1", "blue-1"):
                to = self.random.choice((ORCHESTRATOR, "sentinel", "_substrate"))
                self.send(agent, evaluation(round(self.random.random(), 3)), to)

    def execute(self) -> None:
        winner = self.session.document.round_state.winner.agent_id
        artifact = self.send(winner, model(), self.random.choice(("sentinel", ("sentinel", "librarian"))))
        self.send(winner, evaluation(0.8), "sentinel", parent=artifact)

    def handle_everything(self) -> None:
        self.gather()
        self.simulation.acknowledge()
        self.confirm_stream()

    def send_something(self) -> None:
        agent = self.random.choice(AGENTS)
        payload = self.random.choice(self.payloads())
        to: Any = self.random.choice(
            (
                ORCHESTRATOR,
                "sentinel",
                "red-1",
                ("red-1", "blue-1"),
                (ORCHESTRATOR, "judge"),
                ALL_RECIPIENTS,
                "_substrate",
            )
        )
        fields: dict[str, Any] = {"keys": self.random.choice(((), ("x",), ("y", "z")))}
        if self.random.random() < 0.1:
            # Something to look up, of whatever type: CLAIM and EVAL have it anyway.
            fields["proof_bundle"] = ProofBundle(evidence_refs=("sha256:" + "0" * 64,))
        if self.random.random() < 0.1:
            to, fields["channel"] = agent, Channel.INTRA_AGENT
        if self.random.random() < 0.2:
            fields["run_phase"] = self.random.choice(tuple(RunPhase))
        if self.random.random() < 0.2:
            fields["generation"] = max(0, self.session.generation + self.random.choice((-1, 1)))
        if self.random.random() < 0.2:
            limit = self.random.choice((None, 0, 1, 3))
            fields["routing"] = {"requires_ack": True, "ack_timeout_ms": 5000, "retry_limit": limit}
        if type(payload).__name__ == "TransferPayload":
            fields["lineage"] = lineage()
        self.send(agent, payload, to, parent=self.parent(), **fields)

    def payloads(self) -> list[Any]:
        some = self.random.choice(tuple(self.session.identities))
        impact = ExpectedImpact(quality_gain=0.1, cost_change=0.0, risk_change=0.0)
        rows = tuple(
            Candidate(candidate_id=name, packet_ref_ids=(), score_components={}, total_score=0.5) for name in "ab"
        )
        signals = [Signal.SYNC, Signal.QUERY, Signal.VETO, Signal.RETRY]
        if self.random.random() < 0.1:
            signals = [Signal.STOP, Signal.CANCEL]
        decision: dict[str, Any] = {"recommendation": "go", "priority_distribution": {}, "next_actions": ()}
        level = self.random.choice((None, *CommitmentLevel))
        return [
            brief(self.random.choice(("task-1", "task-2"))),
            IdeaPayload(
                method_id="m",
                intent="i",
                assumptions=(),
                required_capabilities=(),
                expected_impact=impact,
                failure_modes=(),
            ),
            ClaimPayload(claim_id="c", hypothesis_id="h", text="t", confidence_pre=0.5, confidence_post=0.6),
            model(),
            evaluation(round(self.random.random(), 3)),
            transfer(0.9, 0.1, self.random.choice((1, 2))),
            SignalPayload(signal=self.random.choice(signals)),
            DecisionPayload(decision_id="d", commitment_level=level, **decision),
            ArbitrationPayload(arbitration_id="a", candidates=rows, winner_candidate_id="a", scoring={}),
            RetractionPayload(target_packet_id=some, reason="r", replacement_packet_id=self.newest_or_none(some)),
            AckPayload(acked_packet_id=some, ack_status=AckStatus.ACCEPTED),
            ErrorPayload(error_code="E", message="m", retryable=False),
        ]

    def newest_or_none(self, target: UUID) -> UUID | None:
        """Return what stands in the place of a retracted packet: of half of them the newest packet."""
        return next(reversed(self.session.identities)) if target.int % 2 else None

    def parent(self) -> Any:
        current = self.session.document.round_state
        arbitration = current.arbitration.packet_id if current.arbitration else None
        vetoes = tuple(current.arbitration.vetoes) if current.arbitration else ()
        known = [self.start, None, arbitration, current.execution.artifact, *vetoes, *self.sent[-3:]]
        return self.random.choice(known)

    def send(self, agent: str, payload: Payload, to: str | tuple[str, ...], **fields: Any) -> Packet:
        packet: Packet
        fields.setdefault("parent", self.start if self.session.round == 1 else None)
        packet, _ = self.simulation.send(agent, payload, to, packet_id=self.new_id(), **fields)
        self.sent.append(packet)
        if self.random.random() < 0.05:
            self.simulation.take(packet)
        self.gather()
        return packet

    def report_something(self) -> None:
        """Receipts of a delivery that waits, or once more of one that was handled, in any order."""
        self.gather()
        if not self.seen:
            return
        packet, agent, attempt = self.random.choice(self.seen)
        kinds = tuple(self.random.choices(DELIVERY_KINDS, k=self.random.randint(1, 3)))
        if self.random.random() < 0.3:
            kinds = HANDLED
        if self.random.random() < 0.2:
            kinds, agent, attempt = (ReceiptKind.VERIFICATION_FAIL,), ORCHESTRATOR, 1
        self.simulation.receipts(packet, agent, attempt, kinds)

    def gather(self) -> None:
        for agent, inbox in self.simulation.inboxes.items():
            self.seen += [(packet, agent, attempt) for packet, attempt in inbox]
        self.seen = self.seen[-40:]

    def confirm_stream(self) -> None:
        for packet in self.simulation.stream:
            self.simulation.confirm(packet)
        self.simulation.stream.clear()

    def ask_or_answer(self) -> None:
        """A packet that wants ACKs, or the answer of somebody who is asked, or was."""
        document = self.session.document
        asked = {packet_id: pending.missing for packet_id, pending in document.pending_acks.items()}
        asked |= document.overdue_acks
        if not asked or self.random.random() < 0.5:
            limit = self.random.choice((None, 0, 1, 3))
            routing = {"requires_ack": True, "ack_timeout_ms": 5000, "retry_limit": limit}
            to: Any = self.random.choice(("sentinel", ("red-1", "blue-1"), (ORCHESTRATOR, "judge"), ALL_RECIPIENTS))
            self.send("librarian", SignalPayload(signal=Signal.QUERY), to, routing=routing)
            return
        packet_id = self.random.choice(tuple(asked))
        answer = AckPayload(acked_packet_id=packet_id, ack_status=AckStatus.ACCEPTED)
        self.send(self.random.choice(asked[packet_id]), answer, "librarian", parent=packet_id)

    def give_or_end_a_task(self) -> None:
        """A TASK_IR that reserves a part of the budget, or the DECISION that gives one back."""
        task = self.random.choice(("task-1", "task-2", "task-3"))
        payload: Any = brief(task)
        if self.random.random() < 0.5:
            amount = self.random.randint(1, 30)
            budget = IrConstraint(
                id="b", constraint_kind=ConstraintKind.BUDGET, expression=f"packets={amount}; wall_ms={amount}000"
            )
            payload = payload.model_copy(update={"objects": (budget,)})
        elif task in self.session.document.task_budgets:
            payload = DecisionPayload(
                decision_id="d",
                recommendation="done",
                priority_distribution={},
                next_actions=(),
                commitment_level=CommitmentLevel.DONE,
            )
        self.send(self.random.choice(("librarian", "judge")), payload, "sentinel", task=task)

    def pass_some_time(self) -> None:
        self.simulation.pass_time(seconds=self.random.choice((1, 11, 30)))

    def pause_or_resume(self) -> None:
        signal = Signal.RESUME if self.session.is_paused else self.random.choice((Signal.PAUSE, Signal.RESUME))
        self.send("librarian", SignalPayload(signal=signal), ORCHESTRATOR)

"""The coordinator `task` without broker and database: what ends a session, and what never happens in a random walk."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apc_contracts import (
    ClaimPayload,
    DecisionPayload,
    ErrorPayload,
    Packet,
    RetractionPayload,
    SignalPayload,
    TaskIrPayload,
)
from apc_contracts.contract.contract import task_contract
from apc_contracts.contract.coordinators import TERMS, Coordinator
from apc_contracts.judging.verdict import VerdictKind
from apc_contracts.payloads.session_signals import Budgets, TaskSessionSpec
from apc_contracts.payloads.task_ir import IrConstraint, IrHeader
from apc_contracts.session.document import decode_document
from apc_contracts.vocabulary import ORCHESTRATOR, CommitmentLevel, Signal
from apc_contracts.wire.receipts import ReceiptKind

from .conftest import Simulation

TASK = TaskIrPayload(
    ir_header=IrHeader(task_id="task-1", run_id="run-1", swarm_id="library", dialect_id="d", dialect_hash="h"),
    objects=(IrConstraint(id="c", constraint_kind="QUALITY", expression="best"),),
)
DONE, APPROVED = CommitmentLevel.DONE, CommitmentLevel.APPROVED
AGENTS = ("librarian", "red-1", "blue-1", "sentinel")


def decision(level: CommitmentLevel) -> DecisionPayload:
    return DecisionPayload(
        decision_id="d", recommendation="go", priority_distribution={}, next_actions=(), commitment_level=level
    )


def opened(**spec: Any) -> Simulation:
    """A session that red-1 decides, before its task."""
    simulation = Simulation(task_contract())
    fields: dict[str, Any] = {"contract": "task", "members": AGENTS[1:], "deciders": ("red-1",)} | spec
    payload = SignalPayload(signal=Signal.START, session=TaskSessionSpec(**fields))
    _, verdict = simulation.send("librarian", payload, version="apc/1.1", run_phase="EXECUTION")
    assert verdict.kind is VerdictKind.ACCEPTED, verdict.refusal
    return simulation


def working(**spec: Any) -> tuple[Simulation, Packet]:
    simulation = opened(**spec)
    task, verdict = simulation.send("librarian", TASK, "red-1")
    assert verdict.kind is VerdictKind.ACCEPTED, verdict.refusal
    return simulation, task


def failure(**details: Any) -> ErrorPayload:
    """The ERROR of an agent whose handler has failed."""
    return ErrorPayload(
        error_code="HANDLER_ERROR", message="EmitRefused: UNROUTABLE", retryable=False, details=details or None
    )


def reason(simulation: Simulation) -> str:
    assert simulation.session.state == "HALTED"
    return str(simulation.session.document.halt_reason)


def test_a_session_without_task_does_not_wait_for_its_deadline() -> None:
    simulation = opened()
    simulation.pass_time(seconds=61)

    assert reason(simulation) == "NOT_STARTED librarian sent no work"


@pytest.mark.parametrize("is_opening", [True, False])
def test_a_session_ends_with_the_refusal_of_the_work_it_was_opened_for(is_opening: bool) -> None:
    """Other work may be corrected and sent again: its sender says which it is."""
    simulation = opened()
    _, verdict = simulation.send("librarian", TASK, "nobody", is_opening=is_opening)
    assert verdict.refusal is not None
    if is_opening:
        wanted = "NOT_STARTED the TASK_IR with which librarian opened it was refused: UNROUTABLE at recipients[0]"
        assert reason(simulation) == wanted
    else:
        simulation.send("librarian", TASK, "red-1", is_opening=True)
        assert simulation.session.state == "WORKING"
        simulation.send("librarian", TASK, "nobody", is_opening=True)
        assert simulation.session.state == "WORKING", "it has begun"


def test_nobody_else_ends_a_session_with_a_refusal() -> None:
    simulation = opened()
    _, verdict = simulation.send("red-1", TASK, "nobody", is_opening=True)
    assert verdict.refusal is not None and simulation.session.state == "SESSION_OPEN"


def test_the_deadline_ends_a_task_that_is_at_work() -> None:
    simulation, _ = working(deadline_ms=600_000)
    simulation.pass_time(seconds=599)
    assert simulation.session.state == "WORKING"
    simulation.pass_time(seconds=2)

    assert reason(simulation) == "DEADLINE in WORKING"


def test_what_only_its_opener_is_told_keeps_no_session_open() -> None:
    """A client has no inbox: what it is told becomes a dead letter, and nobody will do anything about it."""
    simulation, task = working()
    error = ErrorPayload(error_code="handler_error", message="refused", retryable=False)
    told, _ = simulation.send("red-1", error, "librarian", parent=task)
    simulation.receipts(task, "red-1", 1, (ReceiptKind.DELIVERY_ACK, ReceiptKind.CONSUMER_APPLY, ReceiptKind.OUTCOME))
    simulation.receipts(told, "librarian", 1, (ReceiptKind.DEAD_LETTERED,), error="unroutable")
    simulation.pass_time(seconds=61)

    assert reason(simulation).startswith("STALLED nothing is open; the last end: packet")


def test_a_handler_that_fails_after_its_delivery_has_ended_halts_the_session() -> None:
    """It waited, and what it asked was refused: no dead letter will tell."""
    simulation, task = working()
    simulation.receipts(task, "red-1", 1, (ReceiptKind.DELIVERY_ACK, ReceiptKind.CONSUMER_APPLY, ReceiptKind.OUTCOME))
    error = failure()
    simulation.send("blue-1", error, "librarian", parent=task)
    assert simulation.session.state == "WORKING", "blue-1 never got it"
    simulation.send("red-1", error, "librarian", parent=task)

    assert reason(simulation) == f"HANDLER_FAILED red-1 could not handle TASK_IR {task.packet_id}"


@pytest.mark.parametrize("is_told_first", [True, False])
def test_a_handler_that_waited_and_failed_halts_the_session_whenever_its_receipt_comes(is_told_first: bool) -> None:
    """The ERROR may be judged first: the receipt lingers in the worker, or another process of the agent sends it."""
    simulation, task = working()
    ends = (ReceiptKind.DELIVERY_ACK, ReceiptKind.CONSUMER_APPLY, ReceiptKind.OUTCOME)
    if not is_told_first:
        simulation.receipts(task, "red-1", 1, ends)
    simulation.send("blue-1", failure(waited=True), "librarian", parent=task)
    assert simulation.session.state == "WORKING", "blue-1 never got it"
    simulation.send("red-1", failure(waited=True), "librarian", parent=task)
    halted = reason(simulation)
    if is_told_first:
        simulation.receipts(task, "red-1", 1, ends)

    assert reason(simulation) == halted == f"HANDLER_FAILED red-1 could not handle TASK_IR {task.packet_id}"


@pytest.mark.parametrize("details", [{}, {"waited": False}, {"waited": "true"}, {"waited": 1}])
def test_a_handler_that_did_not_wait_halts_nothing_before_its_dead_letter(details: dict[str, Any]) -> None:
    """So it is in older logs too, where nobody says whether it waited: they replay as they were recorded."""
    simulation, task = working()
    simulation.send("red-1", failure(**details), "librarian", parent=task)
    simulation.receipts(task, "red-1", 1, (ReceiptKind.OUTCOME,))

    assert simulation.session.state == "WORKING"


def test_a_session_in_which_nothing_is_open_stalls() -> None:
    """A handler at work keeps it open; when all have ended, it halts after a minute and names the last end."""
    simulation, task = working()
    simulation.receipts(task, "red-1", 1, (ReceiptKind.DELIVERY_ACK, ReceiptKind.CONSUMER_APPLY))
    simulation.pass_time(seconds=3000)
    assert simulation.session.state == "WORKING"
    simulation.receipts(task, "red-1", 1, (ReceiptKind.OUTCOME,))
    simulation.pass_time(seconds=59)
    assert simulation.session.state == "WORKING"
    simulation.pass_time(seconds=2)

    assert reason(simulation) == f"STALLED nothing is open; the last end: packet {task.packet_id} at red-1"


def test_a_dead_letter_keeps_a_session_open() -> None:
    simulation, task = working(on_failure="continue", deadline_ms=600_000)
    simulation.receipts(task, "red-1", 1, (ReceiptKind.DEAD_LETTERED,), error="handler_error")
    simulation.pass_time(seconds=300)
    assert simulation.session.state == "WORKING"
    simulation.pass_time(seconds=301)

    assert reason(simulation) == "DEADLINE in WORKING"


@pytest.mark.parametrize("on_failure", ["halt", "continue"])
def test_a_dead_letter_of_another_kind_halts_nothing(on_failure: str) -> None:
    simulation, task = working(on_failure=on_failure)
    simulation.receipts(task, "red-1", 1, (ReceiptKind.DEAD_LETTERED,), error="overflow")

    assert simulation.session.state == "WORKING"


def test_a_claim_needs_no_proof_and_a_budget_ends_the_work() -> None:
    simulation, task = working(budgets=Budgets(packets=2))
    claim = ClaimPayload(claim_id="c", hypothesis_id="h", text="t", confidence_pre=0.5, confidence_post=0.6)
    packet = simulation.build("red-1", claim, "blue-1", parent=task)
    assert simulation.take(packet.model_copy(update={"proof_bundle": None})).kind is VerdictKind.ACCEPTED
    _, verdict = simulation.send("blue-1", decision(CommitmentLevel.PROPOSED), "red-1", parent=task)

    assert verdict.refusal is not None and verdict.refusal.code == "BUDGET_EXHAUSTED"
    assert reason(simulation) == "BUDGET_EXHAUSTED packets"


def test_the_document_is_read_back() -> None:
    simulation, _ = working(reviewers=("blue-1",))
    document = simulation.session.document

    assert decode_document(document.encode()) == document


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_a_random_walk_keeps_the_rules(seed: int) -> None:
    """Only legal events; CLOSED by enough distinct approvals of a decider's DONE; rounds within their limit."""
    random = Random(seed)
    approvals, max_rounds = random.choice((1, 2)), random.choice((1, 2, 3))
    reviewers = random.choice(((), ("blue-1", "sentinel")))
    simulation, task = working(reviewers=reviewers, approvals=approvals, max_rounds=max_rounds)
    session = simulation.session
    assert session is not None
    sent: list[Packet] = [task]
    for _ in range(25):
        agent, parent = random.choice(AGENTS), random.choice(sent[-3:])
        payload = random.choice(
            (
                decision(DONE),
                decision(APPROVED),
                SignalPayload(signal=Signal.VETO),
                RetractionPayload(target_packet_id=parent.packet_id, reason="r"),
            )
        )
        packet, verdict = simulation.send(agent, payload, ORCHESTRATOR, parent=parent)
        if verdict.kind is VerdictKind.ACCEPTED:
            sent.append(packet)
    last = simulation.transitions[-1]
    assert {one.event for one in simulation.transitions} <= TERMS[Coordinator.TASK].events
    assert session.round <= max_rounds
    if last.event == "review_passed":
        assert len(set(last.facts["approved_by"])) >= approvals and set(last.facts["approved_by"]) <= set(reviewers)
    if last.to_state == "CLOSED":
        assert last.facts["done_by"] == "red-1"
        assert (last.event == "work_done") == (not reviewers)

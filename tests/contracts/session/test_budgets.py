"""The tree budget through the gate's own functions, and against a reference that keeps every coin in one purse."""

from typing import Any

import pytest

from apc_contracts import DecisionPayload, IdeaPayload, Packet, SignalPayload, TaskIrPayload, load_contract
from apc_contracts.payloads.budget_expression import parse_budget
from apc_contracts.payloads.by_type import ExpectedImpact, Payload
from apc_contracts.payloads.session_signals import Budgets
from apc_contracts.payloads.task_ir import ConstraintKind, IrConstraint, IrHeader
from apc_contracts.session.advance import advance
from apc_contracts.session.movement import ReceiptsInput
from apc_contracts.vocabulary import ORCHESTRATOR, CommitmentLevel, PacketType, RunPhase, Signal
from apc_contracts.wire.receipts import Receipt, ReceiptKind, Usage

from .conftest import Simulation

CONTRACT = load_contract()
TASKS = ("task-1", "a", "b", "c", "d")
IDEA = IdeaPayload(
    method_id="m",
    intent="i",
    assumptions=(),
    required_capabilities=(),
    expected_impact=ExpectedImpact(quality_gain=0.1, cost_change=0.0, risk_change=0.0),
    failure_modes=(),
)
DONE = DecisionPayload(
    decision_id="d",
    recommendation="done",
    priority_distribution={},
    next_actions=(),
    commitment_level=CommitmentLevel.DONE,
)


def task_ir(task: str, *budgets: str) -> TaskIrPayload:
    header = IrHeader(task_id=task, run_id="run-1", swarm_id="library", dialect_id="d", dialect_hash="h")
    objects = [IrConstraint(id="q", constraint_kind=ConstraintKind.QUALITY, expression="packets=1")]
    for number, expression in enumerate(budgets):
        objects.append(IrConstraint(id=f"b{number}", constraint_kind=ConstraintKind.BUDGET, expression=expression))
    return TaskIrPayload(ir_header=header, objects=tuple(objects))


class Tree:
    """A session with a budget, whose packets may be of any task."""

    def __init__(self, simulation: Simulation, **budgets: Any) -> None:
        self.simulation = simulation
        self.told: dict[str, Any] = {}
        """What the log says of the last usage."""
        self.start = simulation.start(budgets=Budgets(**budgets), task_ids=TASKS)
        simulation.acknowledge()

    @property
    def document(self) -> Any:
        return self.simulation.session.document

    def send(self, task: str, payload: Payload, agent: str = "librarian", **fields: Any) -> Any:
        """Return the refusal of a packet of that task, None when it was accepted."""
        self.last: Packet
        self.last, verdict = self.simulation.send(agent, payload, "sentinel", parent=self.start, task=task, **fields)
        return verdict.refusal

    def give(self, task: str, *budgets: str, under: str = "task-1") -> Any:
        return self.send(under, task_ir(task, *budgets))

    def done(self, task: str, agent: str = "librarian") -> Any:
        """DECISION DONE; RESEARCH has no decisions, so the walk to a phase that has is left out."""
        self.document.run_phase = RunPhase.EXECUTION
        refusal = self.send(task, DONE, agent)
        self.document.run_phase = RunPhase.RESEARCH
        return refusal

    def usage(self, kind: ReceiptKind, tokens: int, cost: float = 0.0, attempt: int = 1) -> None:
        """The sentinel reports what the last packet cost it."""
        receipt = Receipt(
            packet_id=self.last.packet_id,
            session_id="s-1",
            recipient="sentinel",
            kind=kind,
            attempt=attempt,
            usage=Usage(tokens=tokens, cost=cost),
            at=self.simulation.now,
        )
        given = ReceiptsInput((receipt,), self.simulation.now)
        advanced = advance(self.simulation.session, given, CONTRACT)
        self.told = next((hop.metadata for hop in advanced.effects.hops if hop.metadata is not None), {})
        self.simulation._apply(advanced)

    def left(self, task: str) -> dict[str, float]:
        parts = self.simulation.session.budget_parts(task, self.simulation.now)
        return {name: part.left for name, part in parts.items()}


@pytest.mark.parametrize(
    ("expression", "asked"),
    [
        ("packets=50", {"packets": 50}),
        (" packets = 5 ; wall_ms=1000;tokens=7; cost=0.5; ", {"packets": 5, "wall_ms": 1000, "tokens": 7, "cost": 0.5}),
        ("cost=3", {"cost": 3.0}),
        ("at most 50 packets", {}),
        ("packets=5; and no more", {}),
        ("packets=5; packets=6", {}),
        ("packets=-5", {}),
        ("packets=1.5", {}),
        ("cost=nan", {}),
        ("wall_ms=999999999999999", {}),
        ("", {}),
        (";", {}),
    ],
)
def test_an_expression_is_wholly_of_the_form_or_reserves_nothing(expression: str, asked: dict[str, float]) -> None:
    assert parse_budget(expression) == asked


def test_a_task_spends_its_part_and_nobody_elses(simulation: Simulation) -> None:
    tree = Tree(simulation, packets=10)
    assert tree.give("task-2", "packets=3") is None
    assert (tree.left("task-1"), tree.left("task-2")) == ({"packets": 6}, {"packets": 3})
    assert [tree.send("task-2", IDEA) for _ in range(3)] == [None] * 3
    refusal = tree.send("task-2", IDEA)
    assert (refusal.code, refusal.path) == ("BUDGET_EXHAUSTED", "trace.task_id")
    assert refusal.message.startswith("packets of the budget of task task-2 are spent (left: packets=0)")
    assert [tree.send("task-1", IDEA) for _ in range(6)] == [None] * 6
    assert simulation.session.state != "HALTED"
    refusal = tree.send("task-1", IDEA)
    assert refusal.path == "trace.session_id" and tree.document.spent == {"packets": 10}
    assert tree.document.halt_reason == "BUDGET_EXHAUSTED packets" and simulation.session.state == "HALTED"


def test_a_spent_part_does_not_end_the_session_nor_a_session_whose_rest_is_reserved(simulation: Simulation) -> None:
    tree = Tree(simulation, packets=5)
    tree.give("task-2", "packets=4")
    refusal = tree.send("task-1", IDEA)
    assert refusal.code == "BUDGET_EXHAUSTED" and "packets=0" in refusal.message
    assert simulation.session.state == "SESSION_OPEN"
    assert tree.send("task-2", IDEA) is None


def test_done_gives_the_unspent_part_back_and_is_free(simulation: Simulation) -> None:
    tree = Tree(simulation, packets=10)
    tree.give("task-2", "packets=4")
    for _ in range(3):
        tree.send("task-2", IDEA)
    before = tree.left("task-1")["packets"]
    assert tree.done("task-2") is None
    assert tree.left("task-1")["packets"] == before + 1
    assert tree.left("task-2") == tree.left("task-1"), "what still comes of it draws from the session"
    assert not tree.document.task_budgets


def test_a_spent_part_can_be_ended(simulation: Simulation) -> None:
    tree = Tree(simulation, packets=10)
    tree.give("task-2", "packets=1")
    tree.send("task-2", IDEA)
    assert tree.send("task-2", IDEA).code == "BUDGET_EXHAUSTED"
    assert tree.done("task-2") is None and tree.document.spent["packets"] == 2


@pytest.mark.parametrize(("agent", "is_released"), [("red-1", False), ("librarian", True), ("judge", True)])
def test_who_ends_a_task(simulation: Simulation, agent: str, is_released: bool) -> None:
    tree = Tree(simulation, packets=10)
    tree.give("task-2", "packets=4")
    assert tree.done("task-2", agent) is None
    assert (simulation.session.task_giver("task-2") is None) is is_released
    assert tree.document.spent["packets"] == (1 if is_released else 2)


def test_a_nested_task_reserves_from_its_parents_part(simulation: Simulation) -> None:
    tree = Tree(simulation, packets=20)
    tree.give("task-2", "packets=8")
    assert tree.give("task-3", "packets=5", under="task-2") is None
    assert (tree.left("task-1"), tree.left("task-2"), tree.left("task-3")) == (
        {"packets": 11},
        {"packets": 2},
        {"packets": 5},
    )
    refusal = tree.give("task-4", "packets=2", under="task-2")
    assert (refusal.code, refusal.path) == ("BUDGET_EXHAUSTED", "payload.objects")
    assert refusal.message == (
        "task task-4 asks for packets=2 and packets=1 are left in the budget of task task-2: ask for less"
    )
    tree.send("task-3", IDEA)
    tree.done("task-3")
    assert tree.left("task-3") == tree.left("task-2") == {"packets": 6}
    tree.give("task-3", "packets=1", under="task-2")
    tree.done("task-2")
    assert tree.left("task-1") == {"packets": 16} and not tree.document.task_budgets


def test_a_task_without_a_budget_draws_from_the_task_that_gave_it(simulation: Simulation) -> None:
    tree = Tree(simulation, packets=20)
    tree.give("task-2", "packets=3")
    tree.give("task-3", under="task-2")
    tree.send("task-3", IDEA)
    assert tree.left("task-3") == tree.left("task-2") == {"packets": 1}


def test_a_brief_that_is_sent_twice_reserves_once(simulation: Simulation) -> None:
    tree = Tree(simulation, packets=20)
    for _ in range(3):
        assert tree.give("task-2", "packets=8", "packets=5; tokens=9") is None
    assert tree.document.task_budgets["task-2"].limits == {"packets": 5, "tokens": 9}
    assert tree.left("task-1") == {"packets": 12}


def test_tokens_beyond_a_part_are_drawn_from_the_next_one(simulation: Simulation) -> None:
    tree = Tree(simulation, tokens=100)
    tree.give("task-2", "tokens=30; cost=0.5")
    tree.send("task-2", IDEA)
    tree.usage(ReceiptKind.RETRY, 20, 0.25)
    assert tree.left("task-2") == {"tokens": 10, "cost": 0.25}
    tree.usage(ReceiptKind.RETRY, 25, 0.125, attempt=2)
    tree.usage(ReceiptKind.RETRY, 99, 9.0, attempt=2)
    assert tree.left("task-2") == {"tokens": 0, "cost": 0.125} and tree.left("task-1") == {"tokens": 55}
    assert tree.send("task-2", IDEA).message.startswith("tokens of the budget of task task-2 are spent")
    assert tree.document.spent == {"packets": 2, "tokens": 45, "cost": 0.375}


def test_the_session_ends_when_its_tokens_are_spent_in_whatever_part(simulation: Simulation) -> None:
    tree = Tree(simulation, tokens=100)
    tree.give("task-2", "tokens=100")
    tree.send("task-2", IDEA)
    tree.usage(ReceiptKind.OUTCOME, 130)
    assert tree.document.halt_reason == "BUDGET_EXHAUSTED tokens"


def test_one_report_does_not_end_a_session(simulation: Simulation) -> None:
    tree = Tree(simulation, tokens=100)
    tree.send("task-1", IDEA)
    tree.usage(ReceiptKind.OUTCOME, 2**53 - 1, 1e300)
    assert tree.document.halt_reason is None and tree.left("task-1") == {"tokens": 50}
    assert tree.document.spent == {"packets": 1, "tokens": 50, "cost": 1000}
    told = tree.told
    assert told["usage"]["tokens"] == 2**53 - 1 and told["usage_refused"]["tokens"] == 2**53 - 51


def test_one_report_draws_no_more_than_was_reserved_for_its_task(simulation: Simulation) -> None:
    tree = Tree(simulation, tokens=100)
    tree.give("task-2", "tokens=30")
    tree.send("task-2", IDEA)
    tree.usage(ReceiptKind.OUTCOME, 1000)
    assert (tree.left("task-1"), tree.left("task-2")) == ({"tokens": 70}, {"tokens": 0})


def test_the_time_of_a_task_ends_and_stands_still_in_a_pause(simulation: Simulation) -> None:
    tree = Tree(simulation, wall_ms=50_000)
    assert tree.give("task-2", "wall_ms=60000").code == "BUDGET_EXHAUSTED"
    assert tree.give("task-2", "wall_ms=10000") is None
    simulation.pass_time(seconds=4)
    simulation.send("librarian", SignalPayload(signal=Signal.PAUSE))
    simulation.pass_time(seconds=30)
    assert tree.left("task-2") == {"wall_ms": 6000}
    simulation.send("librarian", SignalPayload(signal=Signal.RESUME))
    simulation.pass_time(seconds=5)
    assert tree.left("task-2") == {"wall_ms": 1000} and tree.send("task-2", IDEA) is None
    simulation.pass_time(seconds=1)
    assert tree.send("task-2", IDEA).message.startswith("wall_ms of the budget of task task-2 are spent")
    assert tree.send("task-1", IDEA) is None


def test_what_a_pause_held_reserves_at_resume_if_it_still_fits(simulation: Simulation) -> None:
    tree = Tree(simulation, packets=10)
    simulation.send("librarian", SignalPayload(signal=Signal.PAUSE))
    assert tree.give("task-2", "packets=5") is None
    fits = tree.last
    assert tree.give("task-3", "packets=5") is None
    assert tree.left("task-1") == {"packets": 8}
    simulation.send("librarian", SignalPayload(signal=Signal.RESUME))
    assert tree.left("task-2") == {"packets": 5}
    assert simulation.denied == {tree.last.packet_id: "BUDGET_EXHAUSTED"} and fits in [
        hop.received.packet for effects in simulation.effects for hop in effects.routes
    ]


def test_the_tree_is_bounded(simulation: Simulation) -> None:
    bound = CONTRACT.limits.task_budgets
    tree = Tree(simulation, packets=100_000)
    refusals = [tree.give(f"t-{number}", "packets=2; tokens=5; cost=0.5; wall_ms=9") for number in range(bound + 1)]
    assert refusals[:-1] == [None] * bound
    assert (refusals[-1].code, refusals[-1].path) == ("BUDGET_EXHAUSTED", "payload.ir_header.task_id")
    assert len(tree.document.encode()) < 100_000


def test_the_orchestrator_spends_nothing(simulation: Simulation) -> None:
    Tree(simulation, packets=1)
    simulation.pass_time(seconds=1)
    own = [one for one in simulation.packets if one.sender.agent_id == ORCHESTRATOR]
    assert own and simulation.session.document.spent == {}
    assert all(one.packet_type is PacketType.SIGNAL for one in own)

"""What is said of sessions that do not move: each is stuck for another reason."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

from apc_contracts import SignalPayload
from apc_contracts.explanation.explain import explain
from apc_contracts.explanation.failure import Failure
from apc_contracts.explanation.research import RESEARCH_RULES
from apc_contracts.explanation.surroundings import AgentPresence, Doubts, HeldNote, OpenDelivery, Surroundings
from apc_contracts.explanation.words import Explanation
from apc_contracts.payloads.session_signals import Budgets
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import ReceiptKind

from .conftest import BEGINNING, REGISTRY, Simulation
from .path.way import brief, evaluation, generation, research, to_arbitration, to_validation, transfer


def around(simulation: Simulation, **changes: Any) -> Surroundings:
    """Every agent is registered and live, and the deliveries are those that the session has open."""
    session = simulation.session
    assert session is not None
    agents: Mapping[str, AgentPresence] = {
        name: AgentPresence(last_seen=simulation.now, rights=one.rights, swarm_id=one.swarm_id)
        for name, one in REGISTRY.items()
    }
    agents = {**agents, **changes.pop("agents", {})}
    agents = {name: one for name, one in agents.items() if one is not None}
    fields: dict[str, Any] = {"deliveries": open_in(session), "held": held_in(session)} | changes
    return Surroundings(now=simulation.now, agents=agents, **fields)


def open_in(session: Session) -> tuple[OpenDelivery, ...]:
    return tuple(
        OpenDelivery(packet_id, opened.packet.packet_type, agent, progress.attempt)
        for packet_id, opened in session.open.items()
        for agent, progress in opened.recipients.items()
        if progress.is_open
    )


def held_in(session: Session) -> tuple[HeldNote, ...]:
    packets = [item.received.packet for item in session.held.values()]
    return tuple(HeldNote(one.packet_id, one.packet_type, one.sender.agent_id) for one in packets)


def told(simulation: Simulation, **changes: Any) -> Explanation:
    return explain(simulation.session.document, around(simulation, **changes), simulation.contract)


def text_of(explanation: Explanation) -> str:
    waits = [f"{wait.sentence} {wait.moves}" for wait in explanation.waits]
    return "\n".join([explanation.standing, *waits, *explanation.remarks])


def waiting_for_ready(simulation: Simulation) -> None:
    start = simulation.start()
    simulation.acknowledge()
    simulation.send("librarian", brief(), "red-1", parent=start, keys=("a", "b"))
    simulation.send("librarian", brief(), "blue-1", parent=start, keys=("c", "d"))
    simulation.acknowledge()
    simulation.send("red-1", SignalPayload(signal=Signal.SYNC), parent=start)
    simulation.acknowledge()


def without_briefs(simulation: Simulation) -> None:
    simulation.start()


def alike_briefs(simulation: Simulation) -> None:
    start = simulation.start()
    for agent in ("red-1", "blue-1"):
        simulation.send("librarian", brief(), agent, parent=start, keys=("a", "b"))
    simulation.acknowledge()


def paused(simulation: Simulation) -> None:
    start = simulation.start()
    simulation.send("librarian", SignalPayload(signal=Signal.PAUSE))
    simulation.send("librarian", brief(), "red-1", parent=start, keys=("a",))


def without_an_eval(simulation: Simulation) -> None:
    start = simulation.start()
    research(simulation, start)
    simulation.send("red-1", evaluation(0.5), "sentinel", parent=start)
    simulation.acknowledge()


def handler_at_work(simulation: Simulation) -> None:
    start = simulation.start()
    research(simulation, start)
    for agent in ("red-1", "blue-1"):
        simulation.send(agent, evaluation(0.5), "sentinel", parent=start)


def verifying(simulation: Simulation) -> None:
    simulation.verification = ()
    handler_at_work(simulation)
    simulation.acknowledge()


def vetoed(simulation: Simulation) -> None:
    to_arbitration(simulation)
    session = simulation.session
    assert session is not None and session.document.round_state.arbitration is not None
    veto = SignalPayload(signal=Signal.VETO, reason="overfitted")
    simulation.send("sentinel", veto, parent=session.document.round_state.arbitration.packet_id)


def in_the_veto_window(simulation: Simulation) -> None:
    to_arbitration(simulation)


def execution(simulation: Simulation) -> None:
    to_arbitration(simulation)
    simulation.pass_time(seconds=3)
    simulation.acknowledge()


def validation(simulation: Simulation) -> None:
    to_validation(simulation)
    simulation.acknowledge()


def out_of_time(simulation: Simulation) -> None:
    simulation.start()
    simulation.pass_time(seconds=101)


def stopped(simulation: Simulation) -> None:
    simulation.start()
    simulation.send("librarian", SignalPayload(signal=Signal.STOP))


def out_of_packets(simulation: Simulation) -> None:
    start = simulation.start(budgets=Budgets(packets=2))
    for _ in range(3):
        simulation.send("librarian", brief(), "red-1", parent=start, keys=("a",))
    simulation.acknowledge()


@pytest.mark.parametrize(
    ("stick", "words"),
    [
        (
            without_briefs,
            "Waits for a TASK_IR (research brief) to swarms blue, red: librarian, which is live; deadline",
        ),
        (alike_briefs, "research briefs that differ: those of blue and red share more than half of their keys"),
        (
            waiting_for_ready,
            "Waits for READY (SIGNAL SYNC of generation 0 to orchestrator) of swarm blue: blue-1, which",
        ),
        (paused, "paused since 2026-01-01 00:00:00 UTC\nWaits for RESUME (1 packets are held until then)"),
        (without_an_eval, "an EVAL of swarm blue for the barrier of generation 0: blue-1, which is live; deadline"),
        (handler_at_work, "Waits for sentinel to handle EVAL"),
        (verifying, "Waits for the verification of 2 packets"),
        (in_the_veto_window, "the end of the veto window for the winner red"),
        (vetoed, "Waits for an override of the VETO: judge, which is live"),
        (execution, "the winner red: the ARTIFACT that it builds: red-1, which is live; deadline"),
        (validation, "a validating EVAL of ARTIFACT"),
        (out_of_time, "HALTED: STATE_DEADLINE in SESSION_OPEN: the state did not end within state_deadline_ms"),
        (stopped, "HALTED: STOP by librarian: an operator stopped it\nNothing moves a halted session"),
        (out_of_packets, "HALTED: BUDGET_EXHAUSTED packets: the session's budget was used up; open another session"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_stuck_session_says_why(simulation: Simulation, stick: Callable[[Simulation], None], words: str) -> None:
    stick(simulation)
    assert words in text_of(told(simulation))


@pytest.mark.parametrize(
    ("presence", "words", "advice"),
    [
        (None, "blue-1, which is not registered (`apc agent add blue-1 …`)", "Register the agents"),
        (AgentPresence(is_revoked=True), "blue-1, which is revoked", "Register the agents"),
        (AgentPresence(), "blue-1, which is registered but never had a worker", "Start the missing workers"),
        (
            AgentPresence(last_seen=BEGINNING - timedelta(minutes=5)),
            "blue-1, which is registered but has no live worker since 2025-12-31 23:55:00 UTC; deadline "
            "2026-01-01 00:00:10 UTC, then it goes on without them",
            "Start the missing workers",
        ),
    ],
)
def test_who_is_missing_and_what_helps(simulation: Simulation, presence: Any, words: str, advice: str) -> None:
    waiting_for_ready(simulation)
    (wait,) = [one for one in told(simulation, agents={"blue-1": presence}).waits if "READY" in one.what]
    assert words in wait.sentence and advice in wait.moves


def test_a_worker_that_works_is_not_called_absent(simulation: Simulation) -> None:
    waiting_for_ready(simulation)
    seen = AgentPresence(last_seen=simulation.now - timedelta(seconds=80))
    assert "blue-1, which is live" in text_of(told(simulation, agents={"blue-1": seen}))


def test_a_retry_says_when_and_why(simulation: Simulation) -> None:
    handler_at_work(simulation)
    (first, *_) = open_in(simulation.session)
    due = simulation.now + timedelta(seconds=4)
    waits = OpenDelivery(first.packet_id, "EVAL", "sentinel", 2, error="model is away", retry_at=due)
    text = text_of(told(simulation, deliveries=(waits,)))
    assert f"Waits for a retry of sentinel to handle EVAL {first.packet_id} (attempt 2)" in text
    assert "It is delivered again at 2026-01-01 00:00:04 UTC. The last attempt: model is away." in text


def test_what_the_gate_applies_itself_is_waited_for_by_nobody(simulation: Simulation) -> None:
    start = simulation.start()
    applied = OpenDelivery(start.packet_id, "SIGNAL", "orchestrator", 1)
    text = text_of(told(simulation, deliveries=(applied,), agents={"orchestrator": None}))
    assert "orchestrator to handle" not in text


def test_a_dead_letter_names_the_command_that_helps(simulation: Simulation) -> None:
    handler_at_work(simulation)
    (packet, attempt) = simulation.inboxes["sentinel"][0]
    simulation.receipts(packet, "sentinel", attempt, (ReceiptKind.DEAD_LETTERED,), error="handler_error")
    dead = Failure("s-1", packet.packet_id, "EVAL", "red-1", "sentinel", "handler_error", exception="KeyError: 'x'")
    remarks = told(simulation, doubts=Doubts(dead=(dead,))).remarks
    said = f"sentinel could not handle EVAL of red-1 (packet {packet.packet_id}) in 1 attempt: KeyError: 'x'."
    assert any(said in one and f"`apc dead-letter requeue {packet.packet_id}`" in one for one in remarks)


def test_held_transfers_are_named(simulation: Simulation) -> None:
    start = simulation.start(generation_limit=12)
    research(simulation, start)
    for _ in range(11):
        generation(simulation, start, 0.8, 0.6)
    from .path.way import lineage

    simulation.send("red-1", transfer(0.9, 0.2), "blue-1", parent=start, lineage=lineage())
    text = text_of(told(simulation))
    assert "1 held packets (TRANSFER) are judged together at the barrier of generation 11" in text


def test_a_closed_session_waits_for_nothing(simulation: Simulation) -> None:
    simulation.start()
    simulation.session.document.state = "CLOSED"
    explanation = told(simulation)
    assert explanation.waits == () and explanation.standing.startswith("CLOSED in round 1")


def test_every_state_of_the_contract_has_its_words(simulation: Simulation) -> None:
    machine = simulation.contract.machine("inter_agent_coordination")
    assert set(RESEARCH_RULES) == set(machine.states) - set(machine.terminal)

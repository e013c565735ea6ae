"""Whatever comes in whatever order: nothing raises, and the books balance after every input."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apc_contracts import load_contract
from apc_contracts.session.budgets import left_of
from apc_contracts.session.document import decode_document

from .conftest import Simulation
from .walk import Walk

CONTRACT = load_contract()
LIFECYCLE = CONTRACT.machine("packet_lifecycle")
COORDINATION = CONTRACT.machine("inter_agent_coordination")
seeds = st.integers(0, 2**32)


def walk(seed: int, steps: int, check: Callable[[Walk], None] = lambda _: None) -> Walk:
    walked = Walk(Simulation(CONTRACT), seed)
    for _ in range(steps):
        walked.step()
        check(walked)
    return walked


def books_balance(walked: Walk) -> None:
    session = walked.session
    is_open = Counter(
        recipient
        for opened in session.open.values()
        for recipient, progress in opened.recipients.items()
        if progress.is_open
    )
    assert session.outstanding == dict(is_open)
    counted: Counter[str] = Counter()
    for effects in walked.simulation.effects:
        for route in effects.routes:
            counted.update(route.recipients)
        counted.subtract(effects.ended)
    assert +counted == is_open
    assert decode_document(session.document.encode()) == session.document
    document = session.document
    timers = {f"ack:{packet_id}:{pending.attempt}" for packet_id, pending in document.pending_acks.items()}
    assert timers == {kind for kind in document.deadlines if kind.startswith("ack:")}
    assert all(pending.missing for pending in document.pending_acks.values())
    parts = document.task_budgets
    for task, part in parts.items():
        assert all((left_of(document, task, name) or 0) >= 0 for name in part.limits)
        assert not part.parent or part.parent in parts
    if "packets" in document.budgets:
        assert document.spent.get("packets", 0) <= document.budgets["packets"]
    if session.is_terminal:
        assert not session.held and not document.deadlines and not document.pending_acks


def hops_are_keyed(walked: Walk) -> None:
    keys = Counter(
        (hop.packet_id, hop.recipient, hop.attempt, hop.to_state)
        for effects in walked.simulation.effects
        for hop in effects.hops
    )
    assert max(keys.values()) == 1, keys.most_common(3)


def hops_walk_the_machine(walked: Walk) -> None:
    """Each hop begins where the one before it ended, and its events lead where it says."""
    states: dict[tuple[Any, str], str] = {}
    for effects in walked.simulation.effects:
        for hop in effects.hops:
            if not hop.to_state or hop.to_state == "RETRACTED":
                continue
            shared = states.get((hop.packet_id, ""), "DRAFT")
            assert hop.from_state == states.get((hop.packet_id, hop.recipient), shared), hop
            state = hop.from_state
            for event in hop.events:
                state = LIFECYCLE.step(state, event)
            assert state == hop.to_state, hop
            states[hop.packet_id, hop.recipient] = state


def transitions_walk_the_machine(walked: Walk) -> None:
    state, step = COORDINATION.initial, 0
    for transition in walked.simulation.transitions:
        assert transition.from_state == state and transition.step > step
        edge = COORDINATION.edge(state, transition.event)
        assert transition.event == "barrier" or (edge is not None and edge.target == transition.to_state)
        state, step = transition.to_state, transition.step
    assert state == walked.session.state


@pytest.mark.long
@given(seeds)
@settings(max_examples=60, deadline=None)
def test_the_books_balance_after_every_input(seed: int) -> None:
    walked = walk(seed, 60, books_balance)
    hops_are_keyed(walked)
    hops_walk_the_machine(walked)
    transitions_walk_the_machine(walked)


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_two_runs_over_the_same_inputs_are_equal(seed: int) -> None:
    first, second = walk(seed, 60), walk(seed, 60)
    assert first.session.document == second.session.document
    assert first.session.identities == second.session.identities
    hops = [[hop for effects in one.simulation.effects for hop in effects.hops] for one in (first, second)]
    assert hops[0] == hops[1]


def test_walks_reach_every_state() -> None:
    reached: set[str] = set()
    for seed in range(60):
        reached |= {transition.to_state for transition in walk(seed, 80).simulation.transitions}
    assert reached == set(COORDINATION.states) - {"SESSION_OPEN"}

"""Which signals of an agent move a session: docs/research/lifecycle.md says it of each."""

from typing import Any

import pytest
from tests.contracts.session.conftest import Simulation

from apc_contracts import SignalPayload
from apc_contracts.vocabulary import ORCHESTRATOR, Signal

from .path.way import brief


def state_of(simulation: Simulation) -> dict[str, Any]:
    document = simulation.session.document
    names = ("state", "round", "generation", "step", "paused_at", "deadlines", "halt_reason", "round_state")
    return {name: repr(getattr(document, name)) for name in names}


@pytest.mark.parametrize("signal", [Signal.QUERY, Signal.HEARTBEAT, Signal.READY_FOR_TRANSFER, Signal.RETRY])
@pytest.mark.parametrize("to", [ORCHESTRATOR, "sentinel"])
def test_these_are_delivered_and_do_nothing(simulation: Simulation, signal: Signal, to: str) -> None:
    start = simulation.start()
    before = state_of(simulation)
    _, verdict = simulation.send("red-1", SignalPayload(signal=signal), to, parent=start)
    simulation.acknowledge()
    assert verdict.refusal is None
    assert state_of(simulation) == before


def test_a_sync_before_the_briefs_counts_as_ready(simulation: Simulation) -> None:
    start = simulation.start()
    for agent in ("red-1", "blue-1"):
        simulation.send(agent, SignalPayload(signal=Signal.SYNC), parent=start)
    for agent, keys in (("red-1", ("a", "b")), ("blue-1", ("c", "d"))):
        simulation.send("librarian", brief(), agent, parent=start, keys=keys)
    assert simulation.session.state == "INDEPENDENT_DISCOVERY"


def test_a_sync_to_somebody_else_does_not(simulation: Simulation) -> None:
    start = simulation.start()
    simulation.send("red-1", SignalPayload(signal=Signal.SYNC), "sentinel", parent=start)
    assert simulation.session.document.round_state.ready == []

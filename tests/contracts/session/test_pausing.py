"""PAUSE, RESUME, STOP and CANCEL: what stands still, what is held, and what is said of it."""

from typing import Any

import pytest
from tests.contracts.session.conftest import Simulation

from apc_contracts import Packet, SignalPayload
from apc_contracts.payloads.by_type import SignalFields
from apc_contracts.payloads.session_signals import SessionState
from apc_contracts.vocabulary import ORCHESTRATOR, Signal

from .path.way import brief, evaluation, research


def operate(simulation: Simulation, signal: Signal) -> Any:
    return simulation.send("librarian", SignalPayload(signal=signal))[1]


def syncs(simulation: Simulation) -> list[Packet]:
    return [
        one
        for one in simulation.packets
        if one.sender.agent_id == ORCHESTRATOR and one.payload_as(SignalPayload).signal is Signal.SYNC
    ]


def state_in(sync: Packet) -> SessionState:
    told = sync.payload_as(SignalFields).session
    assert isinstance(told, SessionState)
    return told


@pytest.mark.parametrize("signal", [Signal.PAUSE, Signal.RESUME, Signal.STOP, Signal.CANCEL])
def test_only_operators_do_it(simulation: Simulation, signal: Signal) -> None:
    simulation.start()
    for agent in ("red-1", "sentinel", "judge"):
        _, verdict = simulation.send(agent, SignalPayload(signal=signal))
        assert verdict.refusal.code == "NOT_AUTHORIZED"
    assert operate(simulation, signal).refusal is None


def test_a_resume_that_moves_the_session_says_so_once(simulation: Simulation) -> None:
    start = simulation.start()
    operate(simulation, Signal.PAUSE)
    for agent, keys in (("red-1", ("a", "b")), ("blue-1", ("c", "d"))):
        simulation.send("librarian", brief(), agent, parent=start, keys=keys)
    before = len(syncs(simulation))
    operate(simulation, Signal.RESUME)
    (said,) = syncs(simulation)[before:]
    assert simulation.session.state == "DIFFERENTIATED_RESEARCH"
    assert (state_in(said).state, state_in(said).paused) == ("DIFFERENTIATED_RESEARCH", False)


def test_a_resume_that_releases_nothing_says_so_once(simulation: Simulation) -> None:
    simulation.start()
    operate(simulation, Signal.PAUSE)
    before = len(syncs(simulation))
    operate(simulation, Signal.RESUME)
    operate(simulation, Signal.RESUME)
    (said,) = syncs(simulation)[before:]
    assert not state_in(said).paused


def test_what_a_resume_releases_may_close_a_barrier(simulation: Simulation) -> None:
    start = simulation.start()
    research(simulation, start)
    simulation.acknowledge()
    operate(simulation, Signal.PAUSE)
    for agent in ("red-1", "blue-1"):
        simulation.send(agent, evaluation(0.5), ORCHESTRATOR, parent=start)
    simulation.acknowledge()
    before, generation = len(syncs(simulation)), simulation.session.generation
    operate(simulation, Signal.RESUME)
    # The evidence of the EVALs is verified beside the gate: its result is its own cause.
    said = [state_in(one).generation for one in syncs(simulation)[before:]]
    assert len(said) == 2 and max(said) == simulation.session.generation == generation + 1


@pytest.mark.parametrize("signal", [Signal.STOP, Signal.CANCEL])
def test_a_paused_session_can_be_ended(simulation: Simulation, signal: Signal) -> None:
    start = simulation.start()
    operate(simulation, Signal.PAUSE)
    held, _ = simulation.send("librarian", brief(), "red-1", parent=start)
    assert operate(simulation, signal).refusal is None
    document = simulation.session.document
    assert (document.state, document.halt_reason) == ("HALTED", f"{signal} by librarian")
    assert simulation.denied == {held.packet_id: "SESSION_TERMINAL"} and not document.deadlines
    assert operate(simulation, Signal.RESUME).refusal.code == "SESSION_TERMINAL"


def test_wall_budget_and_deadlines_stand_still(simulation: Simulation) -> None:
    simulation.start()
    due = simulation.session.next_deadline
    operate(simulation, Signal.PAUSE)
    simulation.pass_time(hours=5)
    assert simulation.session.next_deadline is None and not simulation.session.is_terminal
    operate(simulation, Signal.PAUSE)
    operate(simulation, Signal.RESUME)
    again = simulation.session.next_deadline
    assert due is not None and again is not None and (again - due).total_seconds() == 5 * 3600

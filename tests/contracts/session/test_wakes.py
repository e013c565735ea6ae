"""Timers of agents without broker and database: when they go off, what a pause does, and what ends them."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from apc_contracts import Packet, SignalPayload
from apc_contracts.judging.verdict import Refusal, VerdictKind
from apc_contracts.payloads.session_signals import WakeSpec
from apc_contracts.session.document import decode_document
from apc_contracts.vocabulary import ORCHESTRATOR, Signal

from .conftest import Simulation
from .test_task import working

HOUR_MS = 3_600_000


def wake(simulation: Simulation, key: str = "k", agent: str = "red-1", to: str = ORCHESTRATOR, **when: Any) -> Refusal:
    """Set a timer; return its refusal, which is None when it is taken."""
    payload = SignalPayload(signal=Signal.WAKE, wake=WakeSpec(key=key, **when))
    _, verdict = simulation.send(agent, payload, to, version="apc/1.1", run_phase="EXECUTION")
    return verdict.refusal  # type: ignore[return-value]


def woken(simulation: Simulation) -> list[str]:
    """Return the keys of the WAKEs that the gate has sent, in order."""
    return [key for _, key in _wakes(simulation)]


def _wakes(simulation: Simulation) -> list[tuple[Packet, str]]:
    return [
        (packet, packet.payload.wake.key)
        for packet in simulation.packets
        if isinstance(packet.payload, SignalPayload)
        and packet.payload.wake is not None
        and packet.sender.agent_id == ORCHESTRATOR
    ]


def signal(simulation: Simulation, which: Signal) -> None:
    _, verdict = simulation.send("librarian", SignalPayload(signal=which), run_phase="EXECUTION")
    assert verdict.kind is VerdictKind.ACCEPTED, verdict.refusal


def due(simulation: Simulation, seconds: float) -> datetime:
    return simulation.now + timedelta(seconds=seconds)


def test_a_timer_comes_back_once_to_the_agent_that_set_it() -> None:
    simulation, _ = working()
    set_at = simulation.now
    assert wake(simulation, after_ms=90_000) is None
    simulation.pass_time(seconds=89)
    assert woken(simulation) == []
    simulation.pass_time(seconds=2)
    simulation.pass_time(seconds=HOUR_MS / 1000)

    ((packet, _),) = _wakes(simulation)
    assert [one.agent_id for one in packet.recipients] == ["red-1"]
    assert packet.payload_as(SignalPayload).wake == WakeSpec(key="k", at=set_at + timedelta(seconds=90))
    assert packet.expires == set_at + timedelta(days=1)  # it waits for its agent until the session ends


def test_the_same_key_replaces_and_others_stay() -> None:
    simulation, _ = working()
    wake(simulation, "a", after_ms=10_000)
    wake(simulation, "a", after_ms=50_000)
    wake(simulation, "a", agent="blue-1", after_ms=20_000)
    wake(simulation, "b", after_ms=30_000)
    simulation.pass_time(seconds=40)
    assert woken(simulation) == ["a", "b"]
    simulation.pass_time(seconds=20)
    assert woken(simulation) == ["a", "b", "a"]


def test_a_pause_moves_after_and_not_at() -> None:
    simulation, _ = working()
    wake(simulation, "after", after_ms=10_000)
    wake(simulation, "at", at=due(simulation, 10))
    signal(simulation, Signal.PAUSE)
    wake(simulation, "in the pause", after_ms=10_000)
    simulation.pass_time(seconds=100)
    assert woken(simulation) == []
    signal(simulation, Signal.RESUME)
    simulation.pass_time(seconds=1)
    assert woken(simulation) == ["at"]
    simulation.pass_time(seconds=10)
    assert sorted(woken(simulation)) == ["after", "at", "in the pause"]


def test_a_pending_timer_keeps_a_session_from_stalling() -> None:
    simulation, _ = working()
    wake(simulation, after_ms=HOUR_MS)
    simulation.pass_time(seconds=HOUR_MS / 1000 - 1)
    assert simulation.session.state == "WORKING"


def test_the_end_of_the_session_cancels_it() -> None:
    simulation, _ = working()
    wake(simulation, after_ms=60_000)
    signal(simulation, Signal.STOP)
    simulation.pass_time(seconds=120)
    session = simulation.session
    assert session is not None and session.work is not None
    assert (woken(simulation), session.work.wakes, session.document.deadlines) == ([], {}, {})
    assert wake(simulation, after_ms=1).code == "SESSION_TERMINAL"


def test_a_time_that_has_passed_goes_off_at_once() -> None:
    simulation, _ = working()
    wake(simulation, at=due(simulation, -HOUR_MS))
    simulation.pass_time(seconds=0.001)
    assert woken(simulation) == ["k"]


def test_what_is_wrong_is_said_with_its_place() -> None:
    simulation, _ = working(deadline_ms=600_000)
    late = wake(simulation, after_ms=HOUR_MS)
    assert (late.code, late.path) == ("NOT_AUTHORIZED", "payload.wake.after_ms")
    assert wake(simulation, at=due(simulation, HOUR_MS)).path == "payload.wake.at"
    assert wake(simulation, to="blue-1", after_ms=1).path == "recipients"


def test_a_session_has_room_for_256_timers() -> None:
    simulation, _ = working()
    for number in range(256):
        assert wake(simulation, f"k{number}", after_ms=HOUR_MS) is None
    full = wake(simulation, "one more", after_ms=HOUR_MS)
    assert (full.code, full.path) == ("OVERLOADED", "payload.wake")
    assert wake(simulation, "k7", after_ms=HOUR_MS // 2) is None


def test_timers_survive_in_the_document() -> None:
    simulation, _ = working()
    wake(simulation, after_ms=HOUR_MS)
    document = simulation.session.document
    assert decode_document(document.encode()) == document


@pytest.mark.parametrize("when", [{}, {"after_ms": 1, "at": datetime.now().astimezone()}])
def test_a_timer_has_one_time(when: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give after_ms or at"):
        WakeSpec(key="k", **when)


def test_a_clock_that_jumps_loses_no_timer_and_doubles_none() -> None:
    """Ahead by ten hours the timers go off, in their order; set back again, they do not go off a second time."""
    simulation, _ = working()
    for key, hours in (("late", 9), ("soon", 1)):
        assert wake(simulation, key=key, after_ms=hours * HOUR_MS) is None
    simulation.pass_time(hours=10)
    assert woken(simulation) == ["soon", "late"]
    simulation.now -= timedelta(hours=10)
    assert wake(simulation, key="again", after_ms=1_000) is None
    simulation.pass_time(hours=10)
    assert woken(simulation) == ["soon", "late", "again"]

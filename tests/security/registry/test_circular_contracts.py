"""A contract whose edges lead round in a circle holds the gate forever: each gate that takes over stands still too."""

import json
from itertools import count

import pytest
from tests.contracts.session.conftest import Simulation
from tests.contracts.session.test_task import AGENTS, DONE, TASK, decision

from apc_contracts import SignalPayload
from apc_contracts.contract.contract import check_deployment, contract_from_bytes, task_contract
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.session import events
from apc_contracts.session.movement import Advance
from apc_contracts.vocabulary import Signal


class StillMovingError(Exception):
    """The session moves although nothing comes in."""


def circular() -> Simulation:
    """Return a session at work, whose end leads back to the work."""
    document = json.loads(task_contract().body)
    edges = document["machines"]["inter_agent_coordination"]["edges"]
    (done,) = (edge for edge in edges if edge["event"] == "work_done")
    done["to"] = "WORKING"
    contract = contract_from_bytes(json.dumps(document).encode())
    check_deployment(contract)
    simulation = Simulation(contract)
    spec = TaskSessionSpec(contract="task", members=AGENTS[1:], deciders=("red-1",))
    start = SignalPayload(signal=Signal.START, session=spec)
    simulation.send("librarian", start, version="apc/1.1", run_phase="EXECUTION")
    return simulation


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_circle_halts_the_session_and_no_gate(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    moves, work = count(), events._settle_state

    def counted(moment: Advance) -> None:
        if next(moves) > 1000:
            raise StillMovingError
        work(moment)

    monkeypatch.setattr(events, "_settle_state", counted)
    if not is_guarded:
        monkeypatch.setattr(events, "MAX_MOVES", 1 << 30)
    simulation = circular()
    task, _ = simulation.send("librarian", TASK, "red-1")
    if is_guarded:
        simulation.send("red-1", decision(DONE), parent=task)
        assert simulation.session.state == "HALTED"
        assert str(simulation.session.document.halt_reason).startswith("CIRCLE WORKING")
    else:
        with pytest.raises(StillMovingError):
            simulation.send("red-1", decision(DONE), parent=task)

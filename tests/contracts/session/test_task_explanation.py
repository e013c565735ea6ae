"""What is said of sessions of the contract `task` that do not move."""

import re
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from apc_contracts.contract.contract import Contract
from apc_contracts.contract.coordinators import TERMS, Coordinator
from apc_contracts.explanation.explain import TASK_RULES
from apc_contracts.explanation.surroundings import HeldNote
from apc_contracts.session.document import OpenQuestion

from .conftest import Simulation
from .room import Room, contract_of, registry, rules
from .test_explanation import text_of, told
from .test_task import DONE, decision, opened, working
from .test_wakes import wake


def handled(simulation: Simulation) -> Simulation:
    simulation.acknowledge()
    return simulation


def test_every_running_state_has_words() -> None:
    assert set(TASK_RULES) == set(TERMS[Coordinator.TASK].states) - {"CLOSED", "HALTED"}


def test_an_opener_that_is_silent() -> None:
    text = text_of(told(handled(opened())))
    assert "Waits for the opener's TASK_IR or MESSAGE: librarian" in text
    assert "then the session is HALTED (NOT_STARTED)" in text


def test_a_decider_that_does_not_decide() -> None:
    text = text_of(told(handled(working()[0])))
    assert "Waits for DECISION DONE of a decider: red-1" in text
    assert "(STALLED: nothing is open)" in text


def test_reviewers_of_whom_one_is_missing() -> None:
    simulation, task = working(reviewers=("blue-1", "sentinel"), approvals=2)
    done, _ = simulation.send("red-1", decision(DONE), "blue-1", parent=task)
    changes: dict[str, Any] = {"agents": {"blue-1": None}}
    text = text_of(told(handled(simulation), **changes))
    assert f"Waits for 2 more approvals of the DONE {done.packet_id} by red-1: blue-1" in text
    assert "round 1 of 2" in text


def test_handlers_that_wait() -> None:
    """A question to people, a request to an agent and a timer: each with whom, until when, and what would move it."""
    simulation, _ = working()
    wake(simulation, "remind", after_ms=600_000)
    handled(simulation)
    assert simulation.session.work is not None
    asked, requested = UUID(int=1), UUID(int=2)
    due = simulation.now + timedelta(minutes=5)
    common: dict[str, Any] = {"role": "", "payload_hash": "", "asked_at": simulation.now, "due_at": due}
    simulation.session.work.questions = {
        asked: OpenQuestion(asker="red-1", may_answer=["alice"], **common),
        requested: OpenQuestion(asker="red-1", may_answer=["blue-1"], returns="opinion/1", **common),
    }
    text = text_of(told(simulation, agents={"blue-1": None}))
    assert f"Waits for the answer to question {asked} of red-1: alice" in text
    assert f"`apc approval approve {asked}`" in text
    assert f"Waits for the answer to request {requested} of red-1, with a result of opinion/1: blue-1" in text
    assert "Waits for the timer remind of red-1" in text
    assert "STALLED" not in text


@pytest.mark.parametrize(
    ("contract", "is_said"),
    [(contract_of(), True), (rules('approved_by("lead")'), True), (rules("content.cents < 9"), False), (None, False)],
)
def test_where_one_user_speaks_for_all_rules_go_by_ids(contract: Contract | None, is_said: bool) -> None:
    simulation = working()[0] if contract is None else Room(Simulation(contract, registry=registry())).simulation
    text = text_of(told(simulation, shared_user="agents"))
    sentence = "the broker user agents speaks for every agent, so the rules tell them apart by their ids alone."
    assert (sentence in text) is is_said


def test_a_task_is_told_without_the_words_of_research() -> None:
    simulation = working()[0]
    held = (HeldNote(UUID(int=1), "MESSAGE", "red-1"),)
    for state in ("WORKING", "REVIEW", "CLOSED", "HALTED"):
        simulation.session.document.state = state
        text = text_of(told(simulation, held=held))
        assert not re.search("generation|barrier|proof bundle|falsifier|promotion|swarm", text), text

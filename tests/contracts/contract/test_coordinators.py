"""A contract names its coordinator: its file may drop and tighten, never invent; `task` ships beside `apc-1.0`."""

import json
from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_contracts import ContractInvalid, PacketType, TransitionRefused
from apc_contracts.contract.contract import Contract, check_guards, contract_from_bytes, load_contract, task_contract
from apc_contracts.contract.coordinators import STOP, TERMS, Coordinator
from apc_contracts.contract.file import contract_schema
from apc_contracts.vocabulary import CONTROL_TYPES, RunPhase

TASK_FILE = (files("apc_contracts") / "data/task-1.1.json").read_bytes()
HASH_OF_1_0 = "7db531e819706348b863342f48c447938fe3d666ef6b81989a30a9107cbef70c"
Change = Callable[[dict[str, Any]], object]
SESSION = "inter_agent_coordination"
FACTS = {"round": 1.0, "max_rounds": 2.0, "approvals": 1.0}
EDGES = {
    ("SESSION_OPEN", "work_started"): "WORKING",
    ("WORKING", "work_done"): "CLOSED",
    ("WORKING", "review_requested"): "REVIEW",
    ("REVIEW", "review_passed"): "CLOSED",
    ("REVIEW", "review_failed"): "WORKING",
    ("SESSION_OPEN", STOP): "HALTED",
    ("WORKING", STOP): "HALTED",
    ("REVIEW", STOP): "HALTED",
}


def edges(document: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document["machines"][SESSION]["edges"]
    return found


def changed(change: Change) -> bytes:
    document = json.loads(TASK_FILE)
    change(document)
    return json.dumps(document).encode()


def test_the_contract_of_1_0_keeps_its_bytes() -> None:
    contract = load_contract()

    assert contract.hash.hex() == HASH_OF_1_0
    assert (contract.coordinator, contract.speaks) == (Coordinator.RESEARCH, frozenset({"apc/1.0"}))


def test_the_task_contract_is_whole() -> None:
    contract = task_contract()

    check_guards(contract)
    jsonschema.validate(json.loads(TASK_FILE), contract_schema())
    assert contract.hash == sha256(TASK_FILE).digest()
    assert (contract.name, contract.coordinator) == ("task", Coordinator.TASK)
    assert contract.speaks == frozenset({"apc/1.0", "apc/1.1"})
    assert {contract.phase_of(state) for state in ("SESSION_OPEN", "WORKING", "REVIEW", "CLOSED")} == {
        RunPhase.EXECUTION
    }
    work = set(PacketType) - CONTROL_TYPES
    assert {kind for kind in work if contract.policy(RunPhase.EXECUTION).allows(kind)} == work - {PacketType.TRANSFER}


STATE_EVENTS = list(product(TERMS[Coordinator.TASK].states, sorted(TERMS[Coordinator.TASK].events)))


@pytest.mark.parametrize(("state", "event"), STATE_EVENTS)
def test_every_state_of_task_with_every_event(state: str, event: str) -> None:
    machine = task_contract().machine(SESSION)

    if (state, event) in EDGES:
        assert machine.step(state, event, FACTS) == EDGES[state, event]
    else:
        with pytest.raises(TransitionRefused):
            machine.step(state, event, FACTS)


@pytest.mark.parametrize(
    ("event", "facts"),
    [
        ("review_passed", {"approvals": 0.0}),
        ("review_passed", {}),
        ("review_failed", {"round": 2.0, "max_rounds": 2.0}),
    ],
)
def test_guards_of_task(event: str, facts: dict[str, float]) -> None:
    with pytest.raises(TransitionRefused, match="the guard"):
        task_contract().machine(SESSION).step("REVIEW", event, facts)


@given(st.lists(st.sampled_from(sorted(TERMS[Coordinator.TASK].events))))
def test_a_task_that_ended_stays_ended(events: list[str]) -> None:
    machine = task_contract().machine(SESSION)
    state = machine.initial
    for event in events:
        if machine.edge(state, event) is not None:
            assert state not in machine.terminal
            state = machine.step(state, event, FACTS)


@pytest.mark.parametrize("contract", [load_contract(), task_contract()], ids=lambda one: one.name)
def test_each_coordinator_raises_what_its_contract_has(contract: Contract) -> None:
    terms, machine = TERMS[contract.coordinator], contract.machine(SESSION)

    assert {edge.event for edge in machine.edges} == terms.events
    assert set(machine.states) == set(terms.states)


def _tighter(document: dict[str, Any]) -> None:
    edges(document)[3]["guard"] = "approvals >= 2.0"


def _without_review(document: dict[str, Any]) -> None:
    machine = document["machines"][SESSION]
    machine["states"].remove("REVIEW")
    machine["edges"] = [edge for edge in edges(document) if not edge["event"].startswith("review")]
    del document["phase_of_state"]["REVIEW"]
    for raised in document["raised_by"].values():
        raised[:] = [event for event in raised if not event.startswith("review")]


@pytest.mark.parametrize("change", [_tighter, _without_review])
def test_a_file_may_drop_and_tighten(change: Change, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_bytes(changed(change))

    assert load_contract(path).coordinator is Coordinator.TASK


def _edge(**edge: Any) -> Change:
    return lambda document: edges(document).append(edge)


def _research(**sections: Any) -> Change:
    def replace(document: dict[str, Any]) -> None:
        document.clear()
        document.update(json.loads(load_contract().body), **sections)

    return replace


GAPS: dict[str, tuple[Change, str]] = {
    "unknown_coordinator": (lambda document: document.update(coordinator="chaos"), "coordinator"),
    "an_event_of_nobody": (
        _edge(**{"from": ["WORKING"], "event": "work_doubled", "to": "REVIEW"}),
        f"machines.{SESSION}.edges[6].event",
    ),
    "an_event_of_research": (
        _edge(**{"from": ["WORKING"], "event": "validation_pass", "to": "REVIEW"}),
        f"machines.{SESSION}.edges[6].event",
    ),
    "a_state_of_research": (
        lambda document: (
            document["machines"][SESSION]["states"].append("VALIDATION"),
            edges(document)[2].update(to="VALIDATION"),
            edges(document)[3].update({"from": ["VALIDATION"]}),
            edges(document)[4].update({"from": ["VALIDATION"], "to": "REVIEW"}),
        ),
        f"machines.{SESSION}.states[5]",
    ),
    "a_state_nobody_can_leave": (
        lambda document: edges(document).__setitem__(slice(3, 5), []),
        f"machines.{SESSION}.states[2]",
    ),
    "no_exit": (
        lambda document: (
            edges(document)[1].update(to="HALTED"),
            edges(document)[3].update(to="HALTED"),
            document["machines"][SESSION].update(states=["SESSION_OPEN", "WORKING", "REVIEW", "HALTED"]),
            document["machines"][SESSION].update(terminal=["HALTED"]),
        ),
        f"machines.{SESSION}.states[0]",
    ),
    "a_fact_of_research": (
        lambda document: document["facts"][0].update(name="generation"),
        "facts[0].scopes",
    ),
    "an_unknown_metric": (
        lambda document: edges(document)[3].update(guard="happiness > 1.0"),
        f"machines.{SESSION}.edges[3].guard",
    ),
    "unknown_version": (lambda document: document["speaks"].append("apc/2.0"), "speaks[2]"),
    "does_not_speak_its_own": (lambda document: document.update(speaks=["apc/1.0"]), "speaks"),
    "order_of_1_0": (lambda document: document["refusals"]["order"].remove("UNKNOWN_CONTRACT"), "refusals.order"),
    "research_without_a_gate": (
        _research(promotion_gate=[]),
        "promotion_gate",
    ),
    "research_without_windows": (
        _research(transfer_windows=[]),
        "transfer_windows",
    ),
}


@pytest.mark.parametrize(("change", "place"), GAPS.values(), ids=GAPS.keys())
def test_a_gap_is_named(change: Change, place: str) -> None:
    with pytest.raises(ContractInvalid) as caught:
        check_guards(contract_from_bytes(changed(change)))
    assert caught.value.place == place

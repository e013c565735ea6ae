"""A deployment's contract has every edge of the packet lifecycle: the gate raises their events in every session."""

import json
from typing import Any

import pytest
from tests.contracts.session.conftest import Simulation
from tests.contracts.session.test_task import AGENTS, TASK

from apc_contracts import ContractInvalid, SignalPayload, TransitionRefused
from apc_contracts.contract.contract import Contract, check_deployment, contract_from_bytes, task_contract
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import ReceiptKind

LIFECYCLE = "packet_lifecycle"
EDGES = sorted((edge.source, edge.event) for edge in task_contract().machine(LIFECYCLE).edges)


def without(state: str, event: str) -> Contract:
    """Return the task contract without this edge. Raises ContractInvalid when that alone is refused."""
    document = json.loads(task_contract().body)
    machine: dict[str, Any] = document["machines"][LIFECYCLE]
    for edge in machine["edges"]:
        if edge["event"] == event:
            every = machine["states"] if edge["from"] == "*" else edge["from"]
            edge["from"] = [one for one in every if one != state]
            if edge.pop("from_terminal", False):
                edge["from"] = [one for one in edge["from"] if one not in machine["terminal"]]
    machine["edges"] = [edge for edge in machine["edges"] if edge["from"]]
    return contract_from_bytes(json.dumps(document).encode())


def test_a_session_breaks_on_an_edge_that_is_missing() -> None:
    """The gate would give up the shard on the dead letter, and so would each gate after it."""
    simulation = Simulation(without("DELIVERED", "dead_lettered"))
    spec = TaskSessionSpec(contract="task", members=AGENTS[1:], deciders=("red-1",))
    start = SignalPayload(signal=Signal.START, session=spec)
    simulation.send("librarian", start, version="apc/1.1", run_phase="EXECUTION")
    task, _ = simulation.send("librarian", TASK, "red-1")
    with pytest.raises(TransitionRefused):
        simulation.receipts(task, "red-1", 1, (ReceiptKind.DELIVERY_ACK, ReceiptKind.DEAD_LETTERED))


@pytest.mark.parametrize(("state", "event"), EDGES)
def test_no_edge_may_be_missing(state: str, event: str) -> None:
    with pytest.raises(ContractInvalid) as refused:
        check_deployment(without(state, event))
    assert refused.value.place.startswith(f"machines.{LIFECYCLE}.")


def test_the_missing_edge_is_named() -> None:
    with pytest.raises(ContractInvalid) as refused:
        check_deployment(without("DELIVERED", "dead_lettered"))
    assert refused.value.message == (
        "the edge from DELIVERED with dead_lettered to DEAD_LETTERED is missing: the gate raises it in every session"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"to": "ROUTED"}, "the edge from DELIVERED with consumer_apply must lead to APPLIED"),
        ({"guard": "round == 1.0"}, "the edge from DELIVERED with consumer_apply has a guard: leave it out"),
    ],
)
def test_an_edge_that_is_not_the_gates_is_refused(change: dict[str, str], words: str) -> None:
    document = json.loads(task_contract().body)
    edges = document["machines"][LIFECYCLE]["edges"]
    next(edge for edge in edges if edge["event"] == "consumer_apply").update(change)
    if "to" in change:
        edges.append({"from": ["ROUTED"], "event": "other", "to": "APPLIED"})
    with pytest.raises(ContractInvalid) as refused:
        check_deployment(contract_from_bytes(json.dumps(document).encode()))
    assert refused.value.message == words


def test_a_log_whose_contract_lacks_an_edge_can_still_be_read() -> None:
    assert without("DELIVERED", "dead_lettered").machine(LIFECYCLE).edge("DELIVERED", "dead_lettered") is None

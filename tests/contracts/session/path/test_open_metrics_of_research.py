"""Open metrics in a research session: its contract refuses them, or nothing of research reads them."""

import json

import pytest
from tests.contracts.session.conftest import Simulation
from tests.contracts.session.path.way import generation, research

from apc_contracts import OpenEvalPayload, load_contract
from apc_contracts.contract.contract import contract_from_bytes, task_contract
from apc_contracts.protocol.ledger import ProtocolLedger

OPEN = OpenEvalPayload(metrics={"outcome": 1.0}, passed=True)


def test_the_packaged_contract_speaks_1_0_alone() -> None:
    simulation = Simulation(load_contract())
    start = simulation.start()
    research(simulation, start)
    _, verdict = simulation.send("red-1", OPEN, "sentinel", parent=start, version="apc/1.1")
    assert verdict.refusal is not None
    assert (verdict.refusal.code, verdict.refusal.path) == ("DRIFT_CHECK_FAILED", "protocol_version")


@pytest.mark.parametrize("is_measured", [False, True])
def test_under_one_that_speaks_1_1_they_are_admitted_and_count_for_nothing(is_measured: bool) -> None:
    """No candidate, no score, no barrier, no evidence; the metric_set of the same swarms does all of this."""
    document = json.loads(load_contract().body) | {"name": "open", "speaks": ["apc/1.0", "apc/1.1"]}
    document["refusals"]["order"] = list(task_contract().file.refusals.order)
    contract = contract_from_bytes(json.dumps(document).encode())
    simulation, ledger = Simulation(contract), ProtocolLedger(contract.effectiveness)
    start = simulation.start()
    research(simulation, start)
    for agent in ("red-1", "blue-1"):
        packet, verdict = simulation.send(agent, OPEN, "sentinel", parent=start, version="apc/1.1")
        assert verdict.refusal is None, verdict.refusal
        assert ledger.note(packet, None, simulation.now) == []
    simulation.acknowledge()
    if is_measured:
        generation(simulation, start, 0.8, 0.6)
    document_of_session = simulation.session.document
    assert simulation.session.generation == is_measured
    assert bool(document_of_session.candidates) is bool(document_of_session.best_outcomes) is is_measured

"""The contract that throttling is compared with is the packaged one with open windows."""

from pathlib import Path

from apc_automl.bench.experiments import write_unthrottled
from apc_contracts.contract.contract import load_contract
from apc_contracts.vocabulary import RunPhase


def test_windows_are_open_from_the_first_generation(tmp_path: Path) -> None:
    contract, packaged = load_contract(write_unthrottled(tmp_path / "contract.json")), load_contract()

    for generation in (0, 10, 11, 30):
        window = contract.window(generation)
        assert window.is_open and window.score_multiplier is None and window.top_k_limit is None
    edge = contract.machine("inter_agent_coordination").edge("INDEPENDENT_DISCOVERY", "generation_window_open")
    assert edge is not None and edge.guard is not None and edge.guard.holds({"generation": 1.0})
    guard = contract.policy(RunPhase.REFINEMENT).transfer
    assert guard is not None and guard.guard.holds({"sender_score": 0.6, "receiver_score": 0.59})
    assert contract.effectiveness == packaged.effectiveness
    assert contract.promotion_gate.whole.text == packaged.promotion_gate.whole.text

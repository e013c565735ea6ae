"""The figures of docs/research/governance.md, by the functions that the gate uses."""

import json
from typing import Any

import pytest

from apc_contracts import PacketType
from apc_contracts.admission.admit import validate_offline
from apc_contracts.contract.contract import Contract, passes_promotion
from apc_contracts.protocol.effectiveness import EvalTally, ProtocolTally, half_lives, is_decayed, measure
from apc_contracts.protocol.transfers import score_transfer
from apc_contracts.session.opening import open_session
from apc_contracts.session.session import Session

from ..scene import CREATED, SPEC, document, received
from .documented import examples

Row = dict[str, str]
OPTIONAL = ("top_k", "threshold_multiplier", "min_generation")


def transfer_of(row: Row) -> dict[str, Any]:
    """Return a TRANSFER as a row describes it."""
    policy = {"mode": row["mode"]} | {name: json.loads(row[name]) for name in OPTIONAL if row.get(name)}
    changes: dict[str, Any] = {
        "payload__sender_score": float(row["sender_score"]),
        "payload__receiver_score": float(row["receiver_score"]),
        "payload__transfer_policy": policy,
        "lineage__transfer_mode": row["mode"],
    }
    for column, path in (
        ("run_phase", "run_phase"),
        ("generation", "trace__generation"),
        ("confidence", "confidence"),
    ):
        if column in row:
            changes[path] = row[column] if column == "run_phase" else json.loads(row[column])
    return changes


@pytest.mark.parametrize("row", examples("windows"), ids=str)
def test_windows_and_guards(row: Row, contract: Contract) -> None:
    verdict = validate_offline(json.dumps(document(PacketType.TRANSFER, **transfer_of(row))).encode(), contract)

    refusal = verdict.refusal
    assert (f"{refusal.code} at {refusal.path}" if refusal else "accepted") == row["verdict"]


@pytest.mark.parametrize("row", examples("verified"), ids=str)
def test_verified_scores(row: Row, contract: Contract) -> None:
    start = received(PacketType.SIGNAL, payload__signal="START", payload__session=SPEC).packet
    session: Session = open_session(start, CREATED, contract)
    session.document.best_outcomes = {
        "linear": float(row["best outcome of the session"]),
        "trees": float(row["own best outcome"]),
    }

    assert f"{session.verified_scores['trees']:.6f}" == row["verified score"]


@pytest.mark.parametrize("row", examples("selection"), ids=str)
def test_selection(row: Row, contract: Contract) -> None:
    score = score_transfer(received(PacketType.TRANSFER, **transfer_of(row)).packet, contract)

    assert f"{score.selection_score:.6f}" == row["selection_score"]
    assert f"{score.total_score:.6f}" == row["total_score"]
    assert str(score.recommended_accept).lower() == row["recommended_accept"]


@pytest.mark.parametrize("row", examples("gate"), ids=str)
def test_the_promotion_gate(row: Row, contract: Contract) -> None:
    metrics = {name: float(cell) for name, cell in row.items() if cell and name != "what fails"}

    assert (", ".join(passes_promotion(metrics, contract).failed) or "nothing") == row["what fails"]


@pytest.mark.parametrize("row", examples("loops"), ids=str)
def test_thresholds_of_the_loop_guard(row: Row, contract: Contract) -> None:
    threshold = getattr(contract.loops, row["count"])

    assert str(threshold.query_after) == row["QUERY beyond"]
    assert str(threshold.refuse_after) == row["refused beyond"]


@pytest.mark.parametrize("row", examples("effectiveness"), ids=str)
def test_effectiveness_and_blocks(row: Row, contract: Contract) -> None:
    scores = EvalTally()
    for outcome, drift_risk in zip(row["outcomes"].split(), row["drift_risks"].split(), strict=True):
        scores.count(float(outcome), float(drift_risk))
    tally = ProtocolTally(int(row["transfers"]), int(row["accepted"]), set(), scores)

    figures = measure(tally, contract.effectiveness)

    for name in ("acceptance_rate", "average_outcome", "average_drift_risk", "effectiveness"):
        assert f"{getattr(figures, name):.6f}" == row[name]
    assert is_decayed(figures, contract.effectiveness) is (row["blocked"] == "yes")


@pytest.mark.parametrize("row", examples("half-life"), ids=str)
def test_half_lives_of_a_block(row: Row, contract: Contract) -> None:
    assert half_lives(int(row["transfers behind the block"]), contract.effectiveness) == int(row["half-lives"])


def test_every_example_of_the_page_has_rows() -> None:
    names = ("windows", "verified", "selection", "gate", "effectiveness", "half-life")
    assert all(len(examples(name)) > 3 for name in names)

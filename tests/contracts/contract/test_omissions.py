"""What a contract leaves out of the usual checks is said."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from apc_contracts.contract.contract import Contract, contract_from_bytes, load_contract, task_contract
from apc_contracts.contract.omissions import omissions

Change = Callable[[dict[str, Any]], object]


def changed(contract: Contract, change: Change) -> Contract:
    document = json.loads(contract.body)
    change(document)
    return contract_from_bytes(json.dumps(document).encode())


def silence(file: dict[str, Any], event: str) -> None:
    file["raised_by"] = {
        raiser: [one for one in events if one != event] for raiser, events in file["raised_by"].items()
    }


def test_a_packaged_contract_leaves_out_nothing() -> None:
    assert omissions(load_contract()) == omissions(task_contract()) == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda file: file.update(drift_checks=[]), "No packet is refused for drift"),
        (lambda file: [check.update(mode="warn") for check in file["drift_checks"]], "No packet is refused for drift"),
        (lambda file: [check.update(guard="true") for check in file["drift_checks"]], "No packet is refused for drift"),
        (
            lambda file: [criterion.update(guard="true") for criterion in file["promotion_gate"]],
            "Whatever wins is promoted",
        ),
        (lambda file: file.update(raised_by={}), "Nothing raises all_swarms_ready, "),
        (lambda file: silence(file, "decision_committed"), "Nothing raises decision_committed: "),
    ],
)
def test_what_is_left_out_is_said(change: Change, said: str) -> None:
    (found,) = omissions(changed(load_contract(), change))
    assert found.startswith(said)


def test_a_task_without_checks_is_said() -> None:
    found = omissions(changed(task_contract(), lambda file: file.update(drift_checks=[], raised_by={})))
    assert [one.partition(":")[0].split(",")[0] for one in found] == [
        "No packet is refused for drift",
        "Nothing raises review_failed",
    ]


def test_another_number_is_no_omission() -> None:
    assert (
        omissions(changed(load_contract(), lambda file: file["promotion_gate"][1].update(guard="stability >= 0.1")))
        == ()
    )

"""docs/reference/protocol.md says of phases, signals and `null` what the contract and the parser do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from apc_contracts.contract.contract import load_contract
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.parsing import parse_packet

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/protocol.md").read_text()
CONTRACT: dict[str, Any] = json.loads((ROOT / "contracts/apc_contracts/data/apc-1.0.json").read_text())


def rows(heading: str) -> dict[str, str]:
    """Return the first two cells of the table below a heading."""
    section = PAGE.split(f"### {heading}\n")[1].split("\n### ")[0]
    return dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", section, re.MULTILINE)[1:])


def test_the_phases_are_those_of_the_contract() -> None:
    shown = {phase: types.split(", ") for phase, types in rows("Phases").items()}
    assert shown == {phase: rule["packet_types"] for phase, rule in CONTRACT["phases"].items()}
    assert load_contract().control_types == set(CONTRACT["control_types"])


def test_every_signal_is_explained_with_the_right_that_it_needs() -> None:
    shown = rows("Signals")
    for signal in Signal:
        (line, *_) = [sender for names, sender in shown.items() if re.search(rf"\b{signal}\b", names)]
        assert (f"`{CONTRACT['rights']['signals'].get(signal)}`" in line) == (signal in CONTRACT["rights"]["signals"])


@pytest.mark.parametrize("field", ["expires_at", "metadata"])
def test_null_means_absent(field: str) -> None:
    packet = json.loads(PAGE.split("```json\n")[1].split("```")[0])
    absent = parse_packet(json.dumps(packet).encode())
    assert parse_packet(json.dumps({**packet, field: None}).encode()) == absent

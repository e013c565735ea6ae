"""The page about the life of a session names every state, every signal and every right of the contract."""

import re

from tests.support.reference.pages import DOCS

from apc_contracts.contract.contract import load_contract
from apc_contracts.vocabulary import Signal

PAGE = (DOCS / "research/lifecycle.md").read_text(encoding="utf-8")


def rows_below(heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading."""
    section = PAGE.split(heading, 1)[1]
    found = re.search(r"\n\|[^\n]*\|\n\|[-|]+\|\n((?:\|[^\n]*\|\n)+)", section)
    assert found is not None, heading
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found[1].splitlines()]


def test_every_state_has_its_row_in_the_order_of_the_contract() -> None:
    states = load_contract().machine("inter_agent_coordination").states
    assert [row[0] for row in rows_below("## Who sends what, when")] == list(states)


def test_every_signal_has_its_row_with_the_right_that_it_needs() -> None:
    rows = rows_below("## Every signal")
    assert [row[0] for row in rows] == [signal.value for signal in Signal]
    rights = load_contract().rights.signals
    for signal, sender, _ in rows:
        right = rights.get(Signal(signal))
        assert (f"right `{right.value}`" in sender) if right else sender.startswith("anyone"), signal

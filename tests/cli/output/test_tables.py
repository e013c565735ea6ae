"""Tables at narrow terminals: ids stay whole, and what is left out is named."""

from typing import Any
from uuid import UUID

import pytest

from apc_cli.output.output import print_table
from apc_cli.output.safe_console import SafeConsole

FIRST, SECOND = (UUID(int=number) for number in (1, 2))
WIDTHS = (60, 80, 100, 120)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_id_and_no_heading_is_broken(width: int) -> None:
    printed = table([session(FIRST), session(SECOND)], width)
    assert all(len(line) <= width for line in printed.splitlines())
    assert str(FIRST) in printed
    assert str(SECOND) in printed
    assert "session id" in printed
    assert "generation" in printed


def test_a_column_that_does_not_fit_is_named() -> None:
    printed = table([session(FIRST), session(SECOND)], 80)
    assert printed.count(str(FIRST)) == 1, "the run is the session: the repeated column goes first"
    assert "left out: run id, why halted (" in " ".join(printed.split())
    assert "left out" not in table([session(FIRST), session(SECOND)], 160)


def test_an_empty_column_goes_before_the_others() -> None:
    rows = [{"packet_id": FIRST, "note": None, "fix": "run it again"}]
    assert "left out: note (" in table([*rows, *rows], 45)


def test_a_column_of_less_weight_goes_before_the_last() -> None:
    rows = [{"packet_id": FIRST, "shard": 3, "is_stale": True}] * 2
    console = SafeConsole(width=46, color_system=None)
    with console.capture() as captured:
        print_table(console, rows, "rows", ["shard"])
    assert "left out: shard (" in captured.get()


@pytest.mark.parametrize("count", [1, 2])
def test_rows_that_do_not_fit_become_records(count: int) -> None:
    rows = [session(one) for one in (FIRST, SECOND)][:count]
    lines = [line.rstrip() for line in table(rows, 50).splitlines()]
    assert lines[:3] == ["rows", f"session id  {FIRST}", f"run id      {FIRST}"]
    assert lines.count("state       EXECUTING") == count
    assert lines[6] == "spent       tokens 1234, cost 0.5"


def test_one_row_that_fits_is_a_table() -> None:
    assert [line.split() for line in table([{"state": "RUNNING", "round": 1}], 40).splitlines()] == [
        ["rows"],
        ["state", "round"],
        ["RUNNING", "1"],
    ]


def test_a_long_word_that_is_no_id_is_folded() -> None:
    rows = [{"check": "database", "found": "x" * 200}] * 2
    assert "left out" not in table(rows, 60)


def test_long_names_are_folded_before_a_column_goes_but_not_the_first_one() -> None:
    row = {"exchange": "e" * 30, "routing_key": "k" * 33, "session": FIRST}
    printed = table([row, row], 92)
    assert "left out" not in printed
    assert "e" * 30 in printed
    assert str(FIRST) in printed
    assert "k" * 33 not in printed
    assert "k" * 33 in table([row, row], 110)


def test_foreign_text_is_neither_markup_nor_a_control_sequence() -> None:
    printed = table([{"state": "[bold]x[/bold]", "note": "a\x1b[2Jb"}], 60)
    assert "[bold]x[/bold]" in printed
    assert "ab" in printed
    assert "\x1b" not in printed


def table(rows: list[dict[str, Any]], width: int) -> str:
    """Return what is printed for rows at a terminal of this width."""
    console = SafeConsole(width=width, color_system=None)
    with console.capture() as captured:
        print_table(console, rows, "rows")
    return captured.get()


def session(number: UUID) -> dict[str, Any]:
    """Return a row as `apc session list` has it."""
    return {
        "session_id": str(number),
        "run_id": str(number),
        "state": "EXECUTING",
        "is_paused": False,
        "generation": 0,
        "spent": {"tokens": 1234, "cost": 0.5},
        "why_halted": None,
    }

"""Tables at narrow terminals: ids stay whole, and what is left out is named."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from rich.cells import cell_len

from apc_cli.output.output import number, print_lines, print_table, show
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


HOSTILE = (
    "a\nsecond line that is rather long and goes on",
    "שלום עולם \u202e evil.exe מرحبا",
    "\x1b[31mRED\x1b[0m \x1b]0;title\x07 \x1b[2J over",
    "👩‍👩‍👧‍👦🏳️‍🌈" * 30,
    "W" * 50_000,
    "漢字" * 60,
    "",
)
QUESTIONS = [
    {
        "packet_id": UUID(int=(1 << 120) + place),
        "question": text,
        "asker": "lab-broken-summarizer-with-a-very-long-agent-name" if place else "clerk",
        "due_at": datetime(2026, 11, 27, 5, 51, 16, 712_000, UTC),
        "note": None,
        "session_id": str(FIRST),
    }
    for place, text in enumerate(HOSTILE)
]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_list_has_one_line_for_each_row(width: int) -> None:
    title, *printed = lines_of(QUESTIONS, width, ("question", "packet_id", "asker"))
    begun = next(place for place, line in enumerate(printed) if "…000000000000" in line)
    rows = printed[begun : begun + len(QUESTIONS)]
    assert [f"…00000000000{place}" in line for place, line in enumerate(rows)] == [True] * len(QUESTIONS)
    assert title == "questions"
    assert all(cell_len(line) <= width and line == line.rstrip() for line in printed)
    assert "note" not in " ".join(printed), "an empty column is neither shown nor left out"
    assert not set("\x1b\u202e").intersection("".join(printed))
    assert ("2026-11-27 05:51Z" in rows[0]) == (width > 40)
    assert ("left out: asker, due at, session id (" in " ".join(printed)) == (width == 40)


def test_ids_and_times_of_a_list_are_whole_where_there_is_room() -> None:
    _, _, row = lines_of([QUESTIONS[0] | {"question": "Ship?"}], 130, ("question", "packet_id"))
    assert row == f"{QUESTIONS[0]['packet_id']}  Ship?     clerk  2026-11-27 05:51:16.712Z  {FIRST}"
    _, _, row, *_ = lines_of([QUESTIONS[0]], 40, ("packet_id", "question"))
    assert row == str(QUESTIONS[0]["packet_id"]), "the weightiest is not shortened"


def test_a_number_is_written_as_people_write_it() -> None:
    assert [show(one) for one in (2000.0, 1_234_567.0, 0.5, 0.00042, float("inf"))] == [
        *("2000", "1234567", "0.5", "0.00042"),
        "inf",
    ]
    assert (type(number(4.0)), number(0.25)) == (int, 0.25)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_nothing_is_bold_where_no_styles_are_wanted(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1m" in at_terminal()
    monkeypatch.setenv(name, value)
    assert "\x1b" not in at_terminal()


def at_terminal() -> str:
    """Return what is printed at a terminal, with its styles."""
    console = SafeConsole(force_terminal=True)
    with console.capture() as captured:
        print_table(console, [{"state": "RUNNING"}], "rows")
    return captured.get()


def lines_of(rows: list[dict[str, Any]], width: int, weight: tuple[str, ...]) -> list[str]:
    """Return the lines of a list at a terminal of this width."""
    console = SafeConsole(width=width, color_system=None)
    with console.capture() as captured:
        print_lines(console, rows, "questions", weight)
    return captured.get().splitlines()


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

"""Which tests a run of the fault matrix takes, what they counted, and the table at its end."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import orjson
import pytest

from .matrix import ROOT, Row, read_matrix, without_parameters

REPORT = ROOT / "build" / "faults.json"
PASSED, FAILED, NOT_EXERCISED, UNPROVEN = "passed", "FAILED", "NOT EXERCISED", "no test yet"


@dataclass(frozen=True, slots=True)
class Exercised:
    """One fault that bit, and what came of it."""

    test: str
    """Node id, with its parameters."""
    fault: str
    packets: int
    lost: int
    redelivered: int
    doubled: int
    recovery_seconds: float
    """From the repair until everything had drained."""
    longest_gap_seconds: float
    """Longest time between two confirms since the fault; of a steady load only."""


RECORDED: list[Exercised] = []
_outcomes: dict[str, set[str]] = {}
"""Test without parameters -> how its cases ended."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --matrix: what the document names, and every long run."""
    if not config.getoption("matrix"):
        return
    named = {test for row in read_matrix() for test in row.tests}
    taken = [one for one in items if one.get_closest_marker("faults") or without_parameters(one.nodeid) in named]
    config.hook.pytest_deselected(items=[one for one in items if one not in taken])
    items[:] = taken


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how a test ended; a skipped one proves nothing."""
    if report.when == "call" or report.outcome != "passed":
        _outcomes.setdefault(without_parameters(report.nodeid), set()).add(report.outcome)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A row that nothing exercised fails the run of the matrix."""
    if not session.config.getoption("matrix"):
        return
    statuses = {row.number: _status(row) for row in read_matrix()}
    if session.exitstatus == pytest.ExitCode.OK and NOT_EXERCISED in statuses.values():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table of `make test-faults`; without --matrix only what was recorded."""
    if config.getoption("matrix"):
        rows = read_matrix()
        terminalreporter.section("fault matrix")
        form = "{:>3} {:52.52} {:14} {:>5} {:>8} {:>5} {:>7} {:>9}"
        terminalreporter.write_line(
            form.format("row", "fault", "outcome", "tests", "packets", "lost", "doubled", "recovery")
        )
        for row in rows:
            terminalreporter.write_line(form.format(row.number, row.fault, _status(row), len(row.tests), *_sums(row)))
        _write(rows)
    if RECORDED:
        terminalreporter.section("faults")
        _write_recorded(terminalreporter)


def _write_recorded(terminalreporter: pytest.TerminalReporter) -> None:
    form = "{:38} {:>5} {:>8} {:>5} {:>11} {:>16} {:>11} {:>12}"
    heading = ("fault", "runs", "packets", "lost", "redelivered", "doubled effects", "drained in", "confirm gap")
    terminalreporter.write_line(form.format(*heading))
    for fault in dict.fromkeys(one.fault for one in RECORDED):
        of_fault = [one for one in RECORDED if one.fault == fault]
        counts = [sum(getattr(one, name) for one in of_fault) for name in ("packets", "lost", "redelivered", "doubled")]
        recovery = f"<= {max(one.recovery_seconds for one in of_fault):.1f} s"
        gap = f"<= {max(one.longest_gap_seconds for one in of_fault):.1f} s"
        terminalreporter.write_line(form.format(fault, len(of_fault), *counts, recovery, gap))


def _status(row: Row) -> str:
    if not row.tests:
        return UNPROVEN
    outcomes = [_outcomes.get(test, set()) for test in row.tests]
    if any("failed" in one for one in outcomes):
        return FAILED
    return PASSED if all(one == {"passed"} for one in outcomes) else NOT_EXERCISED


def _sums(row: Row) -> tuple[str, str, str, str]:
    """Packets, lost, doubled, recovery; tests that count no packets give none."""
    found = _of_row(row)
    if not found:
        return ("-", "-", "-", "-")
    packets, lost, doubled = (sum(getattr(one, name) for one in found) for name in ("packets", "lost", "doubled"))
    return (str(packets), str(lost), str(doubled), f"{max(one.recovery_seconds for one in found):.1f} s")


def _of_row(row: Row) -> Sequence[Exercised]:
    return [one for one in RECORDED if without_parameters(one.test) in row.tests]


def _write(rows: Sequence[Row]) -> None:
    document = [
        {
            "row": row.number,
            "fault": row.fault,
            "outcome": _status(row),
            "tests": row.tests,
            "runs": [asdict(one) for one in _of_row(row)],
        }
        for row in rows
    ]
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))

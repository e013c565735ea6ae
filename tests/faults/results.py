"""What the tests of the fault matrix count, which of them a run takes, and the table at its end.

A plugin of pytest, for tests of all folders prove rows of the matrix.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
import pytest
from tests.faults.matrix import ROOT, Row, read_matrix, without_parameters

REPORT = ROOT / "build" / "faults.json"
PASSED, FAILED, NOT_EXERCISED = "passed", "FAILED", "NOT EXERCISED"
PROPERTY = "exercised"
"""Under this name a test's report carries what it counted, from its own process too."""


@dataclass(frozen=True, slots=True)
class Exercised:
    """One fault that bit, and what came of it; None = there is no such number for this fault.

    Source: docs/explanation/faults.md.
    """

    test: str
    """Node id, with its parameters."""
    fault: str
    packets: int | None
    """Confirmed to their senders: those of the load, and those of the fault that the gate judges."""
    injected: int
    """How often the fault was put in: kills, hostile inputs, attempts."""
    lost: int | None
    """Confirmed, and not in the log."""
    redelivered: int | None
    """Deliveries that came a second time and had no effect."""
    doubled: int | None
    """Effects beyond the first, of a packet at a recipient."""
    recovery_seconds: float | None
    """From the repair, or from the last hostile input, until everything had drained."""
    longest_gap_seconds: float | None
    """Longest time between two confirms since the fault; of a steady load only."""


_recorded: list[Exercised] = []
_outcomes: dict[str, set[str]] = {}
"""Test without parameters -> how its cases ended."""


@pytest.fixture
def exercised(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """Adds a line to the table at the end of the run: the fault, and the numbers of `Exercised` that there are.

    A test that has passed without a line, or that has put nothing in, proves nothing: it fails.
    """
    lines: list[Exercised] = []
    failed_before = request.session.testsfailed

    def add(
        fault: str,
        *,
        packets: int | None = None,
        injected: int = 1,
        lost: int | None = None,
        redelivered: int | None = None,
        doubled: int | None = None,
        recovery_seconds: float | None = None,
        longest_gap_seconds: float | None = None,
    ) -> None:
        assert injected > 0 and packets != 0, f"not exercised: {injected} injected, {packets} packets"
        figures = (packets, injected, lost, redelivered, doubled, recovery_seconds, longest_gap_seconds)
        lines.append(Exercised(request.node.nodeid, fault, *figures))
        request.node.user_properties.append((PROPERTY, asdict(lines[-1])))

    yield add
    assert lines or request.session.testsfailed > failed_before, "not exercised: nothing recorded"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --matrix: what the document names, and every long run."""
    if not config.getoption("matrix"):
        return
    named = {test for row in read_matrix() for test in row.tests}
    taken = [one for one in items if one.get_closest_marker("faults") or without_parameters(one.nodeid) in named]
    config.hook.pytest_deselected(items=[one for one in items if one not in taken])
    items[:] = taken


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how a test ended, and what it counted; a skipped one proves nothing."""
    if report.when == "call" or report.outcome != "passed":
        _outcomes.setdefault(without_parameters(report.nodeid), set()).add(report.outcome)
    if report.when == "call":
        properties: list[tuple[str, Any]] = report.user_properties
        _recorded.extend(Exercised(**value) for name, value in properties if name == PROPERTY)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A row that nothing exercised, or that lost or doubled something, fails the run of the matrix."""
    if not session.config.getoption("matrix"):
        return
    statuses = {_status(row) for row in read_matrix()}
    if session.exitstatus == pytest.ExitCode.OK and statuses & {NOT_EXERCISED, FAILED}:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table of `make test-faults`; without --matrix only what was recorded."""
    if config.getoption("matrix"):
        rows = read_matrix()
        terminalreporter.section("fault matrix")
        form = "{:>3} {:47.47} {:13} {:>5} {:>8} {:>8} {:>5} {:>7} {:>9}"
        heading = ("row", "fault", "outcome", "tests", "packets", "injected", "lost", "doubled", "recovery")
        terminalreporter.write_line(form.format(*heading))
        for row in rows:
            found = _of_row(row)
            sums = [_sum(found, name) for name in ("packets", "injected", "lost", "doubled")]
            longest = _longest(found, "recovery_seconds")
            terminalreporter.write_line(
                form.format(row.number, row.fault, _status(row), len(row.tests), *sums, longest)
            )
        _write(rows)
    if _recorded:
        terminalreporter.section("faults")
        _write_recorded(terminalreporter)


def _write_recorded(terminalreporter: pytest.TerminalReporter) -> None:
    form = "{:42.42} {:>4} {:>7} {:>8} {:>4} {:>11} {:>7} {:>10} {:>11}"
    heading = ("fault", "runs", "packets", "injected", "lost", "redelivered", "doubled", "drained in", "confirm gap")
    terminalreporter.write_line(form.format(*heading))
    for fault in dict.fromkeys(one.fault for one in _recorded):
        found = [one for one in _recorded if one.fault == fault]
        sums = [_sum(found, name) for name in ("packets", "injected", "lost", "redelivered", "doubled")]
        times = [_longest(found, name) for name in ("recovery_seconds", "longest_gap_seconds")]
        terminalreporter.write_line(form.format(fault, len(found), *sums, *times))


def _sum(found: Iterable[Exercised], name: str) -> str:
    """Of the runs that have this number; `-` when none has."""
    numbers = [getattr(one, name) for one in found if getattr(one, name) is not None]
    return str(sum(numbers)) if numbers else "-"


def _longest(found: Iterable[Exercised], name: str) -> str:
    """Return the longest time of the runs that have it; `-` when none has."""
    times = [getattr(one, name) for one in found if getattr(one, name) is not None]
    return f"{max(times):.1f} s" if times else "-"


def _status(row: Row) -> str:
    """Passed: each of its tests ran and passed, and together they counted something, but nothing lost or doubled."""
    outcomes, found = [_outcomes.get(test, set()) for test in row.tests], _of_row(row)
    if any("failed" in one for one in outcomes) or any(one.lost or one.doubled for one in found):
        return FAILED
    return PASSED if found and all(one == {"passed"} for one in outcomes) else NOT_EXERCISED


def _of_row(row: Row) -> Sequence[Exercised]:
    return [one for one in _recorded if without_parameters(one.test) in row.tests]


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

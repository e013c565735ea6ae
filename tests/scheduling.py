"""What the workers of pytest-xdist run in which order: files with one slow test first, and what shares a run together.

Left alone, xdist begins with the files that have most tests: those of one test of two minutes come last, and three
workers wait for the fourth.
"""

from pathlib import Path

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling


def _files(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names.split())


_SHARED = {
    "finished_run": _files("acceptance", "determinism evidence priors reading run_in_process run_supervised"),
    "guarded_broker": (
        *_files(
            "integration/privilege",
            "whole_system broker_probes broker_users doctor_of_users doctor_on_own_user management tls_to_the_broker "
            "user_limits host_users",
        ),
        *_files("security/bus", "hostile_login hosts"),
    ),
    "workbench": (
        *_files("apps/automl/swarm", "builder librarian narrative sentinel shortlist"),
        *_files("apps/automl/run", "sizing"),
        *_files("apps/automl/training", "workbench"),
    ),
}
"""Fixtures that start processes for half a minute, and the files that use them: on one worker each is made once."""
_TOGETHER = {file: f"tests: {fixture}" for fixture, files in _SHARED.items() for file in files}
_FIRST = (
    *_SHARED["finished_run"],
    "tests/acceptance/test_bad_tables.py",
    "tests/acceptance/test_chaos.py",
    "tests/acceptance/test_up.py",
    "tests/security/log/test_tampering.py",
    "tests/security/cli/test_terminal_escapes.py",
    "tests/integration/privilege/test_whole_system.py",
    "tests/integration/agents/test_durable_tasks.py",
    "tests/integration/agents/test_processes_tell.py",
    "tests/integration/gate/test_fuzzed_gate.py",
    "tests/integration/agents/test_llm_worker.py",
    "tests/integration/agents/test_chat_audit.py",
    "tests/cli/chat/test_chat_command.py",
    "tests/cli/chat/test_chat_tasks.py",
    "tests/minds/llm/test_scripted_chat.py",
    "tests/minds/test_mind_table.py",
    "tests/contracts/session/model/test_model.py",
)
"""Files of few tests that take long; the list of slow tests at the end of a run says what belongs here."""
_LONG_SECONDS = 5.0
_ROOT = Path(__file__).parents[1]


class SlowFirst(LoadFileScheduling):  # type: ignore[misc]
    """As `--dist loadfile`, in the order in which the tests were collected."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return _TOGETHER.get(file, file)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SlowFirst | None:
    return SlowFirst(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {file: number for number, file in enumerate(_FIRST)}
    items.sort(key=lambda item: places.get(_file_of(item), len(places)))
    for item in items:
        for fixture in _SHARED.keys() & getattr(item, "fixturenames", ()):
            if _file_of(item) not in _SHARED[fixture]:
                raise pytest.UsageError(f"{_file_of(item)} uses {fixture}: name it in tests/scheduling.py")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = terminalreporter.stats.get("passed", ())
    long = sorted({one.nodeid for one in passed if one.when == "call" and one.duration > _LONG_SECONDS})
    if long:
        terminalreporter.write_line(f"over {_LONG_SECONDS:g} s ({len(long)}): {', '.join(long)}")
    if gone := [file for file in (*_FIRST, *_TOGETHER) if not (_ROOT / file).is_file()]:
        terminalreporter.write_line(f"tests/scheduling.py names files that are gone: {', '.join(gone)}")


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.split("::", 1)[0]

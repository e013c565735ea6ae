"""The tables of docs/reference/conformance: every name exists, every test is collected, nothing that must be listed is
missing; the laws are tried with the number of cases that the page says.
"""

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from hypothesis import is_hypothesis_test, settings

ROOT = Path(__file__).parents[2]
PAGES = sorted(page for page in (ROOT / "docs/reference/conformance").glob("*.md") if page.name != "README.md")
_CODE = re.compile(r"`([^`]+)`")
_NAME = re.compile(r"(?P<module>[\w.]+):(?P<attributes>[\w.]+)(?:\[(?P<key>[^\]]+)\])?")


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    section: str
    what: str
    name: str
    test: str


def _rows(page: Path) -> list[Row]:
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return [Row(section, what, name.strip("`"), test.strip("`")) for section, what, name, test in cells]


def _complete_for(page: Path) -> list[str]:
    """Return what the page says it has a row for every member of."""
    said = re.search(r"^Complete for:(.*?)(?:\n\n|\Z)", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return _CODE.findall(said[1]) if said else []


def _found(name: str) -> Any:
    """Return what a name stands for. Raises LookupError."""
    parsed = _NAME.fullmatch(name)
    if parsed is None:
        raise LookupError(f"{name!r} is not module:attribute")
    value: Any = importlib.import_module(parsed["module"])
    for attribute in parsed["attributes"].split("."):
        value = _attribute(value, attribute, name)
    if parsed["key"] is not None and parsed["key"] not in _members(value):
        raise LookupError(f"{name}: no such key")
    return value


def _attribute(owner: Any, attribute: str, name: str) -> Any:
    if hasattr(owner, attribute):
        return getattr(owner, attribute)
    if attribute in _fields(owner):
        return None
    raise LookupError(f"{name}: {owner} has no {attribute}")


def _fields(owner: Any) -> set[str]:
    """Return the names of the fields of a dataclass, a model, or an annotated class."""
    fields = getattr(owner, "__dataclass_fields__", {}) or getattr(owner, "model_fields", {})
    return {*fields, *getattr(owner, "__annotations__", {})}


def _members(value: Any) -> set[str]:
    """Return the names inside an enumeration, a mapping, or a class with fields."""
    if isinstance(value, type) and issubclass(value, Enum):
        return set(value.__members__)
    if isinstance(value, Mapping):
        return {key.name if isinstance(key, Enum) else str(key) for key in value}
    return _fields(value)


@pytest.fixture(scope="module")
def collected(request: pytest.FixtureRequest) -> set[str]:
    """The node ids of the tests that the tables name, without parameters: those of this run need no second look."""
    here = {item.nodeid.split("[")[0] for item in request.session.items}
    files = sorted({row.test.split("::")[0] for page in PAGES for row in _rows(page) if row.test not in here})
    missing = [file for file in files if not (ROOT / file).is_file()]
    assert not missing
    if not files:
        return here
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return here | {line.split("[")[0] for line in run.stdout.splitlines() if "::" in line}


def test_there_are_tables() -> None:
    assert PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_name_of_a_table_exists(page: Path) -> None:
    rows = _rows(page)
    assert rows
    wrong = []
    for row in rows:
        assert row.section, row
        assert row.what, row
        try:
            _found(row.name)
        except (LookupError, ImportError) as error:
            wrong.append(str(error))
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_of_a_table_is_collected(page: Path, collected: set[str]) -> None:
    assert [row.test for row in _rows(page) if row.test not in collected] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_is_complete_for_has_a_row_each(page: Path) -> None:
    names = {row.name for row in _rows(page)}
    missing = [
        f"{whole}: {member}"
        for whole in _complete_for(page)
        for member in sorted(_members(_found(whole)))
        if not {f"{whole}.{member}", f"{whole}[{member}]"} & names
    ]
    assert missing == []


_LAW: Final = re.compile(r"^\| (?P<law>.+) \| `(?P<test>\S+::test_\w+)` \| (?P<cases>\d+) \|$", re.MULTILINE)


def test_every_law_is_tried_with_the_cases_that_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    page = (ROOT / "docs/reference/conformance" / "README.md").read_text(encoding="utf-8")
    said = {match["test"]: int(match["cases"]) for match in _LAW.finditer(page)}
    assert said == dict(_property_tests())


def _property_tests() -> Iterator[tuple[str, int]]:
    """Yield the tests with generated cases by `folder/file.py::name`, and how many cases each tries."""
    tests = Path(__file__).parent
    for folder in ("context", "agent_context", "memory", "text"):
        for file in sorted((tests / folder).rglob("test_*.py")):
            path = file.relative_to(tests)
            module = importlib.import_module(".".join(("tests.minds", *path.with_suffix("").parts)))
            for owner, prefix in ((module, ""), *_classes_of(module)):
                for name, function in vars(owner).items():
                    if inspect.isfunction(function) and is_hypothesis_test(function):
                        used: settings = vars(function)["_hypothesis_internal_use_settings"]
                        yield f"{path}::{prefix}{name}", used.max_examples


def _classes_of(module: ModuleType) -> Iterator[tuple[type, str]]:
    for name, value in vars(module).items():
        if inspect.isclass(value) and value.__module__ == module.__name__:
            yield value, f"{name}::"


@pytest.mark.parametrize(
    "name",
    ["apc_minds.context", "apc_minds.context:Nothing", "apc_minds.context:PATHS[self.stream.x]", "no.module:x"],
)
def test_a_name_that_is_gone_is_found_out(name: str) -> None:
    with pytest.raises((LookupError, ImportError)):
        _found(name)

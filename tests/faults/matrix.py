"""The fault matrix as docs/explanation/faults.md tells it: which tests prove which row."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs/explanation/faults.md"
ROWS = 52
_ROW = re.compile(r"\| (?P<number>\d+) \| (?P<fault>[^|]+) \| (?P<proof>[^|]+) \|")
_TEST = re.compile(r"`(tests/[^`\s]+\.py::\w+)`")


@dataclass(frozen=True, slots=True)
class Row:
    """A fault, and the tests that prove it, by node id without parameters."""

    number: int
    fault: str
    tests: tuple[str, ...]


def read_matrix() -> list[Row]:
    """Return the rows in their order."""
    return [
        Row(int(found["number"]), found["fault"], tuple(_TEST.findall(found["proof"])))
        for found in map(_ROW.fullmatch, DOCUMENT.read_text().splitlines())
        if found
    ]


def without_parameters(node_id: str) -> str:
    """Return the test of a node id: a matrix names all of its cases at once."""
    return node_id.partition("[")[0]

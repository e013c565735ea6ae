"""SQL on the tables of the log stands in the packages of the log and of its writer alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ELSEWHERE = ("contracts", "bus", "agents", "orchestrator", "web", "client", "doors", "cli", "apps")
TABLE_OF_THE_LOG = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE|TABLE|to_regclass\(')\s*apc_log\.\w", re.IGNORECASE)


def test_sql_of_the_log_stands_in_the_log_and_in_its_writer() -> None:
    found = {
        str(path.relative_to(ROOT))
        for component in ELSEWHERE
        for path in sorted((ROOT / component).rglob("*.py"))
        if any(TABLE_OF_THE_LOG.search(text) for text in _texts(path))
    }
    assert found == set()


def _texts(path: Path) -> Iterator[str]:
    """Yield every text of a module, pieces of f-strings too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value

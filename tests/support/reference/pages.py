"""Which tables exist, and the pages that hold them."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.reference import commands, contract, log_events, python_names, settings, web_api

DOCS = Path(__file__).parents[3] / "docs"
TABLES: Mapping[str, Callable[[], str]] = {
    "settings": settings.settings_tables,
    "commands": commands.command_tables,
    "python names": python_names.name_tables,
    "log events": log_events.event_table,
    "operations": web_api.operation_table,
    "fields": web_api.field_table,
    **{f"contract {name}": make for name, make in contract.TABLES.items()},
}
_BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w ]+) -->\n)(?:.*?\n)??(<!-- end -->)", re.DOTALL)


def pages_with_tables() -> list[Path]:
    """Return the pages that hold at least one generated table."""
    return [page for page in sorted(DOCS.rglob("*.md")) if _BLOCK.search(page.read_text(encoding="utf-8"))]


def tables_of(text: str) -> list[str]:
    """Return the names of the generated tables in a page."""
    return [found["name"] for found in _BLOCK.finditer(text)]


def filled(text: str) -> str:
    """Return the page with its tables generated again."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{TABLES[found['name']]()}\n\n{found[3]}", text)

"""Tables in the documentation that tests hold to what they have seen: behind `<!-- table: name -->`."""

import os
from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/how-to/security.md"


def check_table(name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Fail unless the page's table is this one; with APC_WRITE_TABLES set, write it there."""
    seen = "\n".join(_line(cells) for cells in (head, ["---"] * len(head), *rows))
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(f"<!-- table: {name} -->\n\n", 1)
    documented, end, rest = after.partition("\n\n")
    if os.environ.get("APC_WRITE_TABLES"):
        PAGE.write_text(f"{before}<!-- table: {name} -->\n\n{seen}{end}{rest}", encoding="utf-8")
        return
    assert documented.strip() == seen, f"{PAGE.name}, table {name}: write it again with APC_WRITE_TABLES=1"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

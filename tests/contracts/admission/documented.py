"""The worked examples of docs/research/governance.md: tables behind `<!-- example: name -->`, as rows of text."""

from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/research/governance.md"


def examples(name: str) -> list[dict[str, str]]:
    """Return the rows of an example by the names in its head; '' where a cell is empty."""
    lines = PAGE.read_text(encoding="utf-8").split(f"<!-- example: {name} -->\n\n", 1)[1].splitlines()
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    head, _rule, *body = rows
    return [dict(zip(head, row, strict=True)) for row in body]

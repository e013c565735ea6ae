"""Names in the product that use a retired word of docs/glossary.md, and texts that use a retired phrase."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RETIRED = (
    ("tenure",),
    ("mark",),
    ("marks",),
    ("stranger",),
    ("strangers",),
    ("telling",),
    ("latecomer",),
    ("latecomers",),
    ("notary",),
    ("outside",),
    ("moment",),
    ("moments",),
    ("standing",),
    ("stretch",),
    ("stretches",),
    ("shelf",),
    ("roster",),
    ("relic",),
    ("relics",),
    ("persevere",),
    ("put", "off"),
)
ON_THE_WIRE = {"knowledge_relics"}
RETIRED_PHRASES = re.compile(
    r"\b(?:anew|at hand|of (?:its|their|his|one's) own|for good|for ever|whoever|in vain)\b", re.IGNORECASE
)
BETWEEN_WORDS = re.compile(r"_|\s+(?:#:? )?")
TABLE = re.compile(r"CREATE (?:OR REPLACE )?(?:TABLE|VIEW|FUNCTION)(?: IF NOT EXISTS)? (apc_\w+\.\w+)", re.IGNORECASE)


def retired_names() -> set[str]:
    """Return the name of every module, class, function, table and setting that contains a retired word."""
    return {name for name in _names() if _is_retired(name)}


def retired_phrases(file: Path) -> list[str]:
    """Return each retired phrase in a file, across the lines of a paragraph or a comment too."""
    return RETIRED_PHRASES.findall(BETWEEN_WORDS.sub(" ", file.read_text(encoding="utf-8")))


def _names() -> Iterator[str]:
    for file in sorted(ROOT.glob("*/apc_*/**/*.py")):
        yield file.stem
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and "settings" in file.parts:
                yield node.target.id
    for file in sorted((ROOT / "migrations/sql").rglob("*.sql")):
        yield from TABLE.findall(file.read_text(encoding="utf-8"))


def _is_retired(name: str) -> bool:
    if name in ON_THE_WIRE:
        return False
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace(".", "_").split("_")
    return any(tuple(words[at : at + len(one)]) == one for one in RETIRED for at in range(len(words)))

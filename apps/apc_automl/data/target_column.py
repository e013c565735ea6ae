"""The column to predict: one of the table, or an error that names those to choose from."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from apc_automl.errors import TableInvalid

MOST_COLUMNS_NAMED = 20
LONGEST_NAME = 40


def find_target(path: Path, target: str | None, columns: Sequence[str]) -> str:
    """Return the column to predict, without the spaces around its name.

    Raises:
        TableInvalid: no target is given, or the table has no such column; names the nearest one and the first columns.
    """
    if target is None:
        raise TableInvalid(f"name the column of {path} to predict with --target; its columns are: {_listed(columns)}")
    target = target.strip()
    if target in columns:
        return target
    meant = _nearest(target, columns)
    question = f" (do you mean {_shown(meant)!r}?)" if meant is not None else ""
    raise TableInvalid(f"{path} has no column {target!r} to predict{question}; its columns are: {_listed(columns)}")


def _nearest(target: str, columns: Sequence[str]) -> str | None:
    by_folded = {name.casefold(): name for name in reversed(columns)}
    found = get_close_matches(target.casefold(), by_folded, n=1)
    return by_folded[found[0]] if found else None


def _listed(columns: Sequence[str]) -> str:
    named = ", ".join(_shown(name) for name in columns[:MOST_COLUMNS_NAMED])
    others = len(columns) - MOST_COLUMNS_NAMED
    return f"{named} and {others:,} more" if others > 0 else named


def _shown(name: str) -> str:
    name = " ".join(name.split())
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"

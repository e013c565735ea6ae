"""Three disjoint parts of a table: train, held-out, and untouched with a fresh slice for every round."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from apc_automl.data.table import Table
from apc_automl.data.table_schema import ProblemKind

TRAIN_SHARE = 0.5
HELD_OUT_SHARE = 0.2
REGRESSION_STRATA = 10

Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Parts:
    """Row numbers of each part, ascending; no row is in two of them."""

    train: Rows
    held_out: Rows
    untouched: tuple[Rows, ...]
    """One slice a round: what a failed validation has seen is never used again."""
    rest: Rows
    """Rows to train on that the search has no time for; the winner is trained on them as well."""
    unjudged: Rows
    """Rows of the untouched slices that are too many to judge with."""


def split_rows(table: Table, seed: int, rounds: int, maximum_rows: int) -> Parts:
    """Split all rows, stratified by class (regression: by tenths of the target), then sample what the search looks at.

    Args:
        seed: the same seed and table give the same parts.
        rounds: how many untouched slices are made.
        maximum_rows: of a larger table each part is sampled, stratified as well, so that they have this many together.
    """
    generator = np.random.default_rng([seed, 0x5917])
    untouched = (1.0 - TRAIN_SHARE - HELD_OUT_SHARE) / rounds
    shares = [TRAIN_SHARE, HELD_OUT_SHARE] + [untouched] * rounds
    kept_share = min(1.0, maximum_rows / len(table.frame))
    kept: list[list[Rows]] = [[] for _ in shares]
    others: list[list[Rows]] = [[] for _ in shares]
    for stratum in _strata(table):
        for part, chunk in enumerate(_deal(generator.permutation(stratum), shares)):
            count = max(1, round(len(chunk) * kept_share))
            kept[part].append(chunk[:count])
            others[part].append(chunk[count:])
    train, held_out, *slices = (np.sort(np.concatenate(part)) for part in kept)
    rest, unjudged = (np.sort(np.concatenate([*chain(*parts)])) for parts in (others[:2], others[2:]))
    return Parts(train, held_out, tuple(slices), rest, unjudged)


def sample_notes(table: Table, parts: Parts) -> list[str]:
    """Say how many rows the search looks at, and why; nothing when it looks at all."""
    left_out = len(parts.rest) + len(parts.unjudged)
    if not left_out:
        return []
    rows = len(table.frame)
    trained = len(parts.train) + len(parts.held_out) + len(parts.rest)
    return [
        f"the search looks at {rows - left_out:,} of {rows:,} rows, a stratified sample: its time allows no more "
        f"(--budget-seconds, --maximum-rows); the winner is trained on {trained:,} rows, "
        f"all_rows.skops on all {rows:,}"
    ]


def _strata(table: Table) -> list[Rows]:
    labels = table.frame[table.schema.target]
    if table.schema.problem is ProblemKind.REGRESSION:
        labels = pd.Series(labels.rank(method="first").to_numpy() * REGRESSION_STRATA // (len(labels) + 1))
    return [np.flatnonzero(labels.to_numpy() == value) for value in sorted(labels.unique().tolist())]


def _deal(rows: Rows, shares: Sequence[float]) -> list[Rows]:
    """Cut shuffled rows by share: each part gets at least one row (given enough), the train part the rest."""
    counts = [max(1, round(len(rows) * share)) for share in shares[1:]]
    ends = len(rows) - np.cumsum([0, *counts])
    return [rows[: ends[-1]], *(rows[low:high] for low, high in zip(ends[1:], ends[:-1], strict=True))]

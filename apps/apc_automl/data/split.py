"""Three disjoint parts of a table: train, held-out, and untouched with a fresh slice for every round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from apc_automl.data.schema import ProblemKind
from apc_automl.data.table import Table

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


def split_rows(table: Table, seed: int, rounds: int, maximum_rows: int) -> Parts:
    """Split a table, stratified by class (regression: by tenths of the target).

    Args:
        seed: the same seed and table give the same parts.
        rounds: how many untouched slices are made.
        maximum_rows: a larger table is sampled down to this, stratified as well.
    """
    generator = np.random.default_rng([seed, 0x5917])
    untouched = (1.0 - TRAIN_SHARE - HELD_OUT_SHARE) / rounds
    shares = [TRAIN_SHARE, HELD_OUT_SHARE] + [untouched] * rounds
    dealt: list[list[Rows]] = [[] for _ in shares]
    kept_share = min(1.0, maximum_rows / len(table.frame))
    for stratum in _strata(table):
        rows = generator.permutation(stratum)
        rows = rows[: max(len(shares), round(len(rows) * kept_share))]
        for part, chunk in zip(dealt, _deal(rows, shares), strict=True):
            part.append(chunk)
    train, held_out, *slices = (np.sort(np.concatenate(part)) for part in dealt)
    return Parts(train, held_out, tuple(slices))


def sample_notes(table: Table, parts: Parts) -> list[str]:
    """Return a note about rows that the parts leave out; empty when they have all."""
    used = len(parts.train) + len(parts.held_out) + sum(len(rows) for rows in parts.untouched)
    left_out = len(table.frame) - used
    reason = "the search time allows no more; raise --budget-seconds or --maximum-rows to use more"
    return [f"{used:,} of {len(table.frame):,} rows are used, a stratified sample: {reason}"] if left_out > 0 else []


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

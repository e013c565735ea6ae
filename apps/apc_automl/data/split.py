"""Three disjoint parts of a table: train, held-out, and untouched with a fresh slice for every round; and the folds.

Rows that are equal, or of one group, are never in two parts. Rows in time are judged on the latest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold, TimeSeriesSplit

from apc_automl.data.table import Table
from apc_automl.data.table_schema import ProblemKind, Schema

TRAIN_SHARE = 0.5
HELD_OUT_SHARE = 0.2
REGRESSION_STRATA = 10
LEAST_OF_A_STRATUM = 20
"""Groups."""
LARGEST_GROUP_SHARE = 0.05
"""Of all rows, of one group of equal rows: in a table of few categories many rows are equal, and mean nothing by it."""
BY_CHANCE = 0.1
"""Of the pairs of equal rows, as many by chance at most."""
GROUP_COLUMN = "kept together"

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


def keep_together(table: Table) -> Table:
    """Return the table with its equal rows in groups, unless the user has named the groups or a time; it is said."""
    if table.groups is None and not table.schema.time:
        table = _equal_rows(table)
    if table.groups is None:
        return table
    name = GROUP_COLUMN
    while name in table.frame.columns:
        name += " "
    return replace(table, schema=table.schema.model_copy(update={"kept_together": name}))


def _equal_rows(table: Table) -> Table:
    features = table.frame.drop(columns=table.schema.target)
    codes = pd.factorize(pd.util.hash_pandas_object(features, index=False))[0].astype("int64")
    counts, rows = np.bincount(codes), len(features)
    pairs = float((counts * (counts - 1) / 2).sum())
    chance = rows * (rows - 1) / 2
    for name in features.columns:
        chance *= float(features[name].value_counts(normalize=True, dropna=False).pow(2).sum())
    if not pairs or chance > BY_CHANCE * pairs or counts.max() > LARGEST_GROUP_SHARE * rows:
        return table
    said = f"{rows - len(counts):,} rows repeat others in all columns but the target: equal rows stay together"
    return replace(table, groups=codes).noting(said)


def split_rows(table: Table, seed: int, rounds: int, maximum_rows: int) -> Parts:
    """Split all rows, stratified by class (regression: by tenths of the target), then sample what the search looks at.

    Rows in time are cut in their order instead. Of a group the first row stands for all.

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
    firsts = _firsts(table)
    for stratum in _strata(table, firsts):
        order = stratum if table.schema.time else generator.permutation(stratum)
        for part, chunk in enumerate(_deal(order, shares, is_ordered=bool(table.schema.time))):
            count = max(1, round(len(chunk) * kept_share))
            chosen = np.linspace(0, len(chunk) - 1, count).astype(int) if table.schema.time else np.arange(count)
            kept[part].append(chunk[chosen])
            others[part].append(np.delete(chunk, chosen))
    train, held_out, *slices = (_whole(table, np.concatenate(part)) for part in kept)
    rest, unjudged = (_whole(table, np.concatenate([*chain(*parts)])) for parts in (others[:2], others[2:]))
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


def make_folds(schema: Schema, labels: Rows, groups: Rows | None, count: int, seed: int) -> list[tuple[Rows, Rows]]:
    """Return the (rows to train on, rows to judge) of each fold: in time, by group, or by class."""
    if schema.time:
        return list(TimeSeriesSplit(count).split(labels))
    if groups is not None and len(np.unique(groups)) >= count:
        kind = StratifiedGroupKFold if schema.classes else GroupKFold
        return list(kind(count, shuffle=True, random_state=seed).split(labels, labels, groups))
    plain = StratifiedKFold if schema.classes else KFold
    return list(plain(count, shuffle=True, random_state=seed).split(labels, labels))


def _firsts(table: Table) -> Rows:
    """Return the first row of each group; every row where none are kept together."""
    if table.groups is None:
        return np.arange(len(table.frame))
    return np.sort(np.unique(table.groups, return_index=True)[1])


def _whole(table: Table, firsts: Rows) -> Rows:
    """Return the rows of the groups that begin with these, ascending."""
    if table.groups is None:
        return np.sort(firsts)
    return np.flatnonzero(np.isin(table.groups, table.groups[firsts]))


def _strata(table: Table, firsts: Rows) -> list[Rows]:
    if table.schema.time:
        return [firsts]
    labels = table.frame[table.schema.target].iloc[firsts]
    if table.schema.problem is ProblemKind.REGRESSION:
        strata = max(1, min(REGRESSION_STRATA, len(labels) // (1 if table.groups is None else LEAST_OF_A_STRATUM)))
        labels = pd.Series(labels.rank(method="first").to_numpy() * strata // (len(labels) + 1))
    return [firsts[np.flatnonzero(labels.to_numpy() == value)] for value in sorted(labels.unique().tolist())]


def _deal(rows: Rows, shares: Sequence[float], *, is_ordered: bool) -> list[Rows]:
    """Cut rows by share: each part gets at least one row (given enough), the train part the rest.

    Args:
        is_ordered: the parts are in the order of the rows; else the train part is first, and the others from the end.
    """
    counts = [max(1, round(len(rows) * share)) for share in shares[1:]]
    counts = counts[::-1] if is_ordered else counts
    ends = len(rows) - np.cumsum([0, *counts])
    cut = [rows[low:high] for low, high in zip(ends[1:], ends[:-1], strict=True)]
    return [rows[: ends[-1]], *(cut[::-1] if is_ordered else cut)]

"""What the rows tell of the columns before the search: which are kept, and which would make its judgement too good."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import entropy, spearmanr
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_selection import SelectKBest, f_classif, f_regression
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.model_selection import GroupKFold, KFold
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from apc_automl.data.columns import as_numbers
from apc_automl.data.split import Parts, Rows
from apc_automl.data.table import LEAST_GROUPS, Table, describe, in_time
from apc_automl.data.table_schema import Column, ColumnKind, ProblemKind
from apc_automl.errors import TableInvalid

SUSPICIOUS = 0.99
"""Accuracy, or share of the variance, that one column explains on rows that its tree has not seen."""
TESTED_ROWS = 2000
LEAVES = 64
MAXIMUM_COLUMNS = 200
MOST_WORDS = 300
LEAST_ROWS = 3
"""A word that fewer rows have tells nothing that holds elsewhere."""
MOST_SHARE = 0.98
LEAST_WORDS = 2
WORSE = 1.25
"""Times as much loss on rows that are later, or of other groups, as on rows from between: then it matters."""
WORSE_BY = 0.05
"""Of the loss of the trivial baseline, too."""
NEIGHBOURS_ALIKE = 0.25
"""The correlation of what a model misses of a row and of the row after it."""
LATEST_SHARE = 0.3
FOLDS = 3
TESTED_COLUMNS = 60
"""With more a test takes longer than it is worth."""
MOST_GROUP_COLUMNS = 4
NAMES_OF_TIME = ("year", "month", "week", "day", "date", "time", "period", "quarter", "step", "tick", "index", "t")
NAMES_OF_GROUPS = (
    *("id", "customer", "client", "user", "patient", "subject", "person", "account", "device", "machine", "session"),
    *("household", "store", "shop", "student", "employee", "vehicle", "sensor", "kunde", "kundennummer", "patientin"),
)

Numbers = np.ndarray[Any, Any]


def leakage_notes(table: Table, train: Rows) -> list[str]:
    """Return a warning for each column that predicts the target alone; judged on the train part, half by half."""
    frame, target = table.frame.iloc[train[:TESTED_ROWS]], table.schema.target
    labels = frame[target].to_numpy()
    is_regression = table.schema.problem is ProblemKind.REGRESSION
    if not is_regression and frame[target].value_counts(normalize=True).iloc[0] > SUSPICIOUS:
        return []
    return [
        f"warning: column {column.name!r} predicts {target!r} alone; leave it out if it is known only after {target!r}"
        for column in table.schema.columns
        if _score(as_numbers(frame[column.name], column).fillna(-1e9).to_numpy(), labels, is_regression) > SUSPICIOUS
    ]


def _score(column: Numbers, labels: Numbers, is_regression: bool) -> float:
    """Return how well a column alone predicts the labels, of rows that its tree has not seen."""
    kind = DecisionTreeRegressor if is_regression else DecisionTreeClassifier
    half, features = np.arange(len(labels)) % 2 == 0, column.reshape(-1, 1)
    model = kind(max_leaf_nodes=LEAVES, min_samples_leaf=3, random_state=0).fit(features[half], labels[half])
    score = float(model.score(features[~half], labels[~half]))
    if not is_regression or len(np.unique(column)) < 2:
        return score
    return max(score, float(spearmanr(column, labels).statistic) ** 2)  # Steps do not follow the largest values.


def judge_fairly(table: Table, *, is_in_time: bool = True) -> Table:
    """Return the table in time where a date column says that its rows are; with warnings where they only may be.

    Each test compares what a small model loses on rows from between those it knows with what it loses on later ones,
    or on those of other groups.

    Args:
        is_in_time: whether the order of the rows may matter at all.
    """
    schema = table.schema
    if not 0 < len(schema.columns) <= TESTED_COLUMNS:
        return table
    trial = _Trial(table)
    if schema.time:
        told = [(one.name, trial.worse_later(one)) for one in schema.columns if one.name == schema.time]
        return table.noting(*(_drifting(name, ratio) for name, ratio in told if ratio > WORSE))
    if not is_in_time:
        said = "rows are split without regard to time, as --time none says: of later rows the score may say too much"
        return table.noting(said, *_warnings_of_groups(table))
    dates = schema.of_kind(ColumnKind.DATE)
    worst = max(((trial.worse_later(one), one.name, one) for one in dates), default=None, key=lambda one: one[:2])
    if worst is not None and (worst[0] > WORSE or trial.is_sorted(worst[2])):
        said = f"the rows are in time: the model is trained on the earlier and judged on the latest by {worst[1]!r}"
        drifting = [_drifting(worst[1], worst[0])] if worst[0] > WORSE else []
        return in_time(table, worst[2]).noting(f"{said}; --time none switches it off", *drifting)
    return table.noting(*trial.warnings_of_time(), *_warnings_of_groups(table))


def _drifting(name: str, ratio: float) -> str:
    return (
        f"warning: column {name!r}: later rows are predicted worse than those from between, with {ratio:.1f} times the "
        "loss: rows further ahead than those that judge may be predicted worse still"
    )


def _parts(values: Any, column: Column) -> Numbers:
    """Return what the small model sees of a column: of a date also the day of the year, as the search's models do."""
    numbers = as_numbers(values, column).to_numpy().reshape(-1, 1)
    if column.kind is not ColumnKind.DATE:
        return np.asarray(numbers)
    return np.hstack([numbers, numbers % 365.25, np.floor(numbers) % 7])


def _is_named(column: Column, names: Sequence[str]) -> bool:
    return not {*column.name.casefold().replace("_", " ").split()}.isdisjoint(names)


def _warnings_of_groups(table: Table) -> Iterator[str]:
    """Yield a warning for each column whose rows of one value tell of each other."""
    rows, tried = len(table.frame), 0
    for column in table.schema.columns:
        values = table.frame[column.name]
        is_name = column.kind is not ColumnKind.NUMERIC or bool((values == values.round()).all())
        is_candidate = is_name and column.kind is not ColumnKind.DATE and LEAST_GROUPS < values.nunique() < rows / 2
        if not is_candidate or tried == MOST_GROUP_COLUMNS:
            continue
        tried += 1
        if _Trial(table, column.name).is_worse_apart(column):
            yield (
                f"warning: rows of one {column.name!r} are alike: the score is that of known ones; for others keep "
                f"them together with --group {column.name}"
            )


def _sampled(table: Table, column: str) -> Rows:
    """Return rows for a trial, ascending: of whole groups where a column is given and many of its groups fit."""
    count = len(table.frame)
    if column and count > TESTED_ROWS:
        codes = pd.factorize(table.frame[column])[0]
        sizes = np.bincount(codes[codes >= 0])
        order = np.random.default_rng(0).permutation(len(sizes))
        chosen = order[np.cumsum(sizes[order]) <= TESTED_ROWS]
        if len(chosen) >= LEAST_GROUPS:
            return np.flatnonzero(np.isin(codes, chosen))
    return np.linspace(0, count - 1, min(count, TESTED_ROWS)).astype(int)


class _Trial:
    """Small models of a sample of the rows, in the order of the file; of groups, where a column is given, all rows."""

    def __init__(self, table: Table, column: str = "") -> None:
        schema = self.schema = table.schema
        rows = _sampled(table, column)
        frame = table.frame.iloc[rows]
        self.columns = {column.name: as_numbers(frame[column.name], column).to_numpy() for column in schema.columns}
        self.codes = {one.name: pd.factorize(frame[one.name])[0] for one in schema.columns}
        self.parts = {column.name: _parts(frame[column.name], column) for column in schema.columns}
        self.is_regression = schema.problem is ProblemKind.REGRESSION
        labels = frame[schema.target].to_numpy()
        self.labels = labels if self.is_regression else np.unique(labels, return_inverse=True)[1]
        self.groups = None if table.groups is None else table.groups[rows]
        """Of equal rows: they would tell each other."""

    def worse_later(self, column: Column) -> float:
        """Return how many times as much is lost on the latest rows; 1 where it is not much more."""
        order = np.argsort(np.nan_to_num(self.columns[column.name], nan=-np.inf), kind="stable")
        cut = round(len(order) * (1 - LATEST_SHARE))
        later = self._loss([(order[:cut], order[cut:])], [*self.columns])
        return self._ratio(later, self._loss(self._plain_folds(), [*self.columns]))

    def is_sorted(self, column: Column) -> bool:
        """Return whether the rows stand in the order of a column, or in the other one."""
        steps = np.diff(self.columns[column.name][~np.isnan(self.columns[column.name])])
        return bool(len(steps) and steps.any() and ((steps >= 0).all() or (steps <= 0).all()))

    def warnings_of_time(self) -> Iterator[str]:
        """Yield a warning where the order of the rows tells of the target."""
        for column in self.schema.of_kind(ColumnKind.NUMERIC):
            is_time = _is_named(column, NAMES_OF_TIME)
            if is_time and self.is_sorted(column) and self.worse_later(column) > WORSE:
                yield (
                    f"warning: the rows are in the order of {column.name!r}, and later ones are predicted worse than "
                    f"rows from between: judge on the latest with --time {column.name}"
                )
                return
        if self._is_in_blocks():
            return
        missed = self._missed()
        alike = float(np.corrcoef(missed[:-1], missed[1:])[0, 1]) if missed.std() > 0 else 0.0
        if alike > max(NEIGHBOURS_ALIKE, 4 / np.sqrt(len(missed))):
            yield (
                f"warning: rows that follow each other are alike in {self.schema.target!r}, which the columns do not "
                "explain: if they are in time or of one group, name its column with --time or --group; the score is "
                "that of rows from between"
            )

    def is_worse_apart(self, column: Column) -> bool:
        """Return whether more is lost on rows of other values of a column than on rows of known ones."""
        names = [name for name in self.columns if name != column.name or _is_named(column, NAMES_OF_GROUPS)]
        codes = self.codes[column.name]
        apart = list(GroupKFold(FOLDS).split(codes, codes, codes))
        return bool(names) and self._ratio(self._loss(apart, names), self._loss(self._plain_folds(), names)) > WORSE

    def _is_in_blocks(self) -> bool:
        """Return whether the rows are sorted by the target."""
        steps = np.diff(self.labels.astype(float))
        return bool((steps != 0).sum() < len(np.unique(self.labels)) or (steps >= 0).all() or (steps <= 0).all())

    def _plain_folds(self) -> list[tuple[Rows, Rows]]:
        is_grouped = self.groups is not None and len(np.unique(self.groups)) >= FOLDS
        kind = GroupKFold if is_grouped else KFold
        return list(kind(FOLDS, shuffle=True, random_state=0).split(self.labels, groups=self.groups))

    def _ratio(self, loss: float, plain: float) -> float:
        return loss / plain if plain > 0 and loss - plain > WORSE_BY else 1.0

    def _loss(self, folds: list[tuple[Rows, Rows]], names: Sequence[str]) -> float:
        """Return the loss over that of the trivial baseline."""
        said = [(self.labels[test], self._said(names, train, test)) for train, test in folds]
        if self.is_regression:
            losses, trivial = [mean_squared_error(labels, one) for labels, one in said], np.var(self.labels)
        else:
            shares = np.bincount(self.labels)
            losses = [log_loss(labels, one, labels=np.arange(len(shares))) for labels, one in said]
            trivial = entropy(shares)
        return float(np.mean(losses) / max(1e-12, trivial))

    def _missed(self) -> Numbers:
        """Return what a cross-validated model misses of each row: of classes, whether it is the most common one."""
        common = None if self.is_regression else int(np.bincount(self.labels).argmax())
        labels = self.labels if common is None else self.labels == common
        missed = np.zeros(len(labels))
        for train, test in self._plain_folds():
            said = self._said([*self.columns], train, test)
            missed[test] = labels[test] - (said if common is None else said[:, common])
        return missed

    def _said(self, names: Sequence[str], train: Rows, test: Rows) -> Numbers:
        """Return what a small model of some rows says of others: a number, or a probability of each class."""
        features = np.column_stack([self.parts[name] for name in names])
        kind = HistGradientBoostingRegressor if self.is_regression else HistGradientBoostingClassifier
        model = kind(max_iter=30, max_leaf_nodes=15, random_state=0)
        if not self.is_regression and len(np.unique(self.labels[train])) == 1:
            model = DummyClassifier()
        model.fit(features[train], self.labels[train])
        if self.is_regression:
            return np.asarray(model.predict(features[test]))
        said = np.full((len(test), int(self.labels.max()) + 1), 1e-3)
        said[:, model.classes_] = np.clip(model.predict_proba(features[test]), 1e-3, 1.0)
        return np.asarray(said / said.sum(axis=1, keepdims=True))


def narrow(table: Table, train: Rows) -> Table:
    """Return the table with its most telling numeric columns, judged one by one on the train part alone.

    A very wide table is narrowed before the search: its slices travel to every process in every generation. The other
    columns stay. A table of at most 200 columns comes back as it is.
    """
    schema = table.schema
    numeric = schema.names(ColumnKind.NUMERIC)
    surplus = len(schema.columns) - MAXIMUM_COLUMNS
    if surplus <= 0 or not numeric:
        return table
    kept_count = max(1, len(numeric) - surplus)
    values = table.frame[numeric].iloc[train]
    filled = values.fillna(values.median()).fillna(0.0).to_numpy()
    score = f_classif if schema.problem is ProblemKind.CLASSIFICATION else f_regression
    chosen = SelectKBest(score, k=kept_count).fit(filled, table.frame[schema.target].iloc[train].to_numpy())
    kept = {*chosen.get_feature_names_out(numeric)}
    columns = [column for column in schema.columns if column.kind is not ColumnKind.NUMERIC or column.name in kept]
    note = f"{len(schema.columns) - len(columns)} numeric columns that tell least by themselves are left out"
    return table.with_columns(columns).noting(note)


def choose_words(table: Table, train: Rows) -> Table:
    """Return the table with the words of its texts, chosen from the train part alone.

    A text whose rows share no words is left out, and said.

    Raises:
        TableInvalid: no column is left.
    """
    columns: list[Column] = []
    notes: list[str] = []
    for column in table.schema.columns:
        if column.kind is not ColumnKind.TEXT:
            columns.append(column)
            continue
        words = _common_words(table.frame[column.name].iloc[train])
        if len(words) < LEAST_WORDS:
            notes.append(f"column {column.name!r} is left out: its texts share no words")
            continue
        columns.append(column.model_copy(update={"words": words}))
        notes.append(f"column {column.name!r} is text: its {len(words)} most frequent words are counted")
    if not columns:
        raise TableInvalid(f"there is no usable column besides {table.schema.target!r}: {'; '.join(notes)}")
    return table.with_columns(columns).noting(*notes)


def _common_words(texts: Any) -> tuple[str, ...]:
    most = int(MOST_SHARE * len(texts))
    counter = CountVectorizer(binary=True, min_df=LEAST_ROWS, max_df=most, max_features=MOST_WORDS)
    try:
        return tuple(sorted(counter.fit(texts.dropna()).get_feature_names_out().tolist()))
    except ValueError:  # No word is in so many rows.
        return ()


def profile_table(table: Table, parts: Parts) -> dict[str, Any]:
    """Return a JSON object: problem, sizes of the parts, columns with their missing share, target summary, notes."""
    schema = table.schema
    missing = table.frame.isna().mean()
    untouched = [len(rows) for rows in parts.untouched]
    return {
        "target": schema.target,
        "problem": schema.problem.value,
        "rows": len(table.frame),
        "parts": {"train": len(parts.train), "held_out": len(parts.held_out), "untouched": untouched},
        **{f"{kind.value}_columns": len(schema.of_kind(kind)) for kind in ColumnKind},
        "missing_share": {str(name): round(float(share), 4) for name, share in missing.items() if share},
        "target_summary": _target_summary(table.frame[schema.target], schema.problem),
        "features": dict(describe(schema.columns)),
        "notes": list(schema.notes),
    }


def _target_summary(labels: Any, problem: ProblemKind) -> dict[str, Any]:
    """Return the share of each class, or what the numbers are like."""
    if problem is ProblemKind.CLASSIFICATION:
        shares = labels.value_counts(normalize=True).sort_index().round(4)
        return {str(label): share for label, share in shares.to_dict().items()}
    summary = labels.agg(["mean", "std", "min", "max"]).round(6).tolist()
    return dict(zip(("mean", "deviation", "lowest", "highest"), summary, strict=True))

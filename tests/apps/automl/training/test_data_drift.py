"""The drift gate alone: independent splits pass it, shifted ones do not, on tables of all kinds."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_blobs, make_classification, make_friedman1, make_moons, make_regression
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, train_test_split
from sklearn.naive_bayes import GaussianNB

from apc_automl.data.table_schema import Column, ColumnKind, ProblemKind, Schema
from apc_automl.training import gates

SPLITS = 20
"""Of each of the ten tables."""
SHIFTED = 6
Numbers = np.ndarray[Any, Any]


def numbers(features: Numbers, target: Numbers) -> pd.DataFrame:
    return pd.DataFrame(features, columns=[f"x{place}" for place in range(features.shape[1])]).assign(y=target)


def classes(seed: int, rows: int, **options: Any) -> pd.DataFrame:
    return numbers(*make_classification(n_samples=rows, n_features=10, n_informative=5, random_state=seed, **options))


def with_categories(seed: int) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    frame = classes(seed, 400)
    frame["city"] = generator.choice(["Rome", "Oslo", "Bonn", "Lyon"], len(frame))
    frame.loc[generator.random(len(frame)) < 0.2, "x3"] = np.nan
    return frame


def heavy_tails(seed: int) -> pd.DataFrame:
    frame = numbers(*make_friedman1(n_samples=300, n_features=8, random_state=seed))
    return frame.assign(x7=np.random.default_rng(seed).standard_cauchy(len(frame)))


TABLES: dict[str, Callable[[int], pd.DataFrame]] = {
    "separable": lambda seed: numbers(*make_blobs(400, n_features=6, centers=2, cluster_std=0.5, random_state=seed)),
    "separable, four classes": lambda seed: numbers(*make_blobs(500, n_features=4, centers=4, random_state=seed)),
    "rare class": lambda seed: classes(seed, 600, weights=[0.96]),
    "small": lambda seed: classes(seed, 120),
    "small regression": lambda seed: numbers(*make_regression(120, n_features=6, noise=5, random_state=seed)),
    "noisy": lambda seed: classes(seed, 500, flip_y=0.4),
    "moons": lambda seed: numbers(*make_moons(400, noise=0.2, random_state=seed)),
    "wide": lambda seed: numbers(*make_classification(500, n_features=30, n_informative=8, random_state=seed)),
    "categories and holes": with_categories,
    "heavy tails": heavy_tails,
}


@dataclass
class Parts:
    """A table in two parts and what a model that was trained on the first says of both."""

    table: pd.DataFrame
    known: pd.DataFrame
    unseen: pd.DataFrame

    def risk(self) -> float:
        is_number = self.table["y"].dtype.kind == "f"
        names = [name for name in self.known if name != "y"]
        kinds = {name: ColumnKind.CATEGORICAL if name == "city" else ColumnKind.NUMERIC for name in names}
        labels = () if is_number else tuple(sorted(set(self.table["y"].tolist())))
        schema = Schema(
            target="y",
            problem=ProblemKind.REGRESSION if is_number else ProblemKind.CLASSIFICATION,
            label_type="number" if is_number else "whole number",
            classes=labels,
            columns=tuple(Column(name=name, kind=kind) for name, kind in kinds.items()),
        )
        known, unseen = self.errors(labels)
        target = self.known["y"].to_numpy()
        trivial = gates.trivial_predictions(target, len(target), labels)
        scale = float(gates.errors_of(target, trivial, labels).mean())
        distances = gates.column_distances(self.known, self.unseen, schema)
        distances[gates.ERRORS] = gates.error_distance(known, unseen, scale)
        return gates.risk_of(distances, len(known), len(unseen))[0]

    def errors(self, labels: tuple[Any, ...]) -> tuple[Numbers, Numbers]:
        """Out of fold, and of the unseen rows."""
        features, target = self.features(self.known), self.known["y"].to_numpy()
        out_of_fold = np.zeros((len(target), len(labels)) if labels else len(target))
        for train, test in KFold(4, shuffle=True, random_state=0).split(features):
            out_of_fold[test] = self.said(features[train], target[train], features[test], labels)
        said = self.said(features, target, self.features(self.unseen), labels)
        return gates.errors_of(target, out_of_fold, labels), gates.errors_of(self.unseen["y"].to_numpy(), said, labels)

    def features(self, frame: pd.DataFrame) -> Numbers:
        return np.asarray(frame.drop(columns=["y", *({"city"} & set(frame.columns))]).fillna(0.0))

    def said(self, features: Numbers, target: Numbers, unseen: Numbers, labels: tuple[Any, ...]) -> Numbers:
        if not labels:
            return np.asarray(Ridge().fit(features, target).predict(unseen))
        model = GaussianNB(var_smoothing=1e-3).fit(features, target)
        found = np.zeros((len(unseen), len(labels)))
        found[:, [labels.index(one) for one in model.classes_.tolist()]] = model.predict_proba(unseen)
        return np.nan_to_num(found)


def independent(table: pd.DataFrame, seed: int) -> Parts:
    known, unseen = train_test_split(table, test_size=0.3, random_state=seed)
    return Parts(table, known, unseen)


def by_a_column(table: pd.DataFrame, seed: int) -> Parts:
    """The unseen rows are those where one column is highest: another season, another place."""
    column = f"x{seed % 2}"
    order = table[column].to_numpy().argsort(kind="stable")
    cut = round(0.7 * len(table))
    return Parts(table, table.iloc[order[:cut]].sample(frac=1, random_state=seed), table.iloc[order[cut:]])


def moved(table: pd.DataFrame, seed: int) -> Parts:
    """One column of the unseen rows is two deviations higher: another instrument."""
    parts = independent(table, seed)
    spread = (table["x1"].quantile(0.84) - table["x1"].quantile(0.16)) / 2
    parts.unseen = parts.unseen.assign(x1=parts.unseen["x1"] + 2 * spread)
    return parts


def refused(split: Callable[[pd.DataFrame, int], Parts], splits: int = SPLITS) -> dict[str, float]:
    """Table -> share of its splits that the gate refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            name: float(np.mean([split(make(seed), seed).risk() > gates.DRIFT_LIMIT for seed in range(splits)]))
            for name, make in TABLES.items()
        }


def test_independent_splits_pass() -> None:
    found = refused(independent)
    assert np.mean(list(found.values())) <= 0.01, found


@pytest.mark.parametrize("shift", [by_a_column, moved])
def test_shifted_splits_are_refused(shift: Callable[[pd.DataFrame, int], Parts]) -> None:
    found = refused(shift, SHIFTED)
    assert np.mean(list(found.values())) >= 0.95, found


def test_worse_errors_are_drift_and_better_ones_are_not() -> None:
    generator = np.random.default_rng(1)
    known = generator.exponential(size=400)
    worse, better = known[:200] + 1.0, known[:200] * 0.2
    assert gates.risk_of({gates.ERRORS: gates.error_distance(known, worse, 2.0)}, 400, 200)[0] > gates.DRIFT_LIMIT
    assert gates.error_distance(known, better, 2.0) < 0.1


def test_a_tiny_distance_is_none_however_many_rows_prove_it() -> None:
    generator = np.random.default_rng(1)
    known, unseen = generator.normal(size=200_000), generator.normal(0.05, size=100_000)
    risk, name = gates.risk_of({"x": gates.drift_distance(known, unseen)}, len(known), len(unseen))
    assert (risk, name) == (0.0, "x")


def test_a_model_that_is_less_sure_and_less_often_wrong_has_not_drifted() -> None:
    """The final model has more rows to train on than the folds: easy rows cost a little more, hard ones less."""
    folds = np.concatenate([np.full(800, 0.01), np.full(200, 3.0)])
    final = np.concatenate([np.full(900, 0.10), np.full(100, 2.0)])
    assert final.mean() < folds.mean()
    assert gates.error_distance(folds, final, scale=1.0) == 0.0
    assert gates.error_distance(final, folds, scale=1.0) > 0

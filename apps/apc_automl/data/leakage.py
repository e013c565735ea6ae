"""A warning about columns that predict the target alone: often they are known only after the target."""

import warnings
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score, r2_score
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from apc_automl.data.features import as_numbers
from apc_automl.data.split import Rows
from apc_automl.data.table import Table
from apc_automl.data.table_schema import Column, ProblemKind

SUSPICIOUS = 0.99
"""Accuracy, or share of the variance, that one column explains on rows that its tree has not seen."""
ROWS = 2000
LEAVES = 64


def leakage_notes(table: Table, train: Rows) -> list[str]:
    """Return a warning for each column that predicts the target alone; judged on the train part, half by half."""
    frame = table.frame.iloc[train[:ROWS]]
    target = table.schema.target
    labels = frame[target].to_numpy()
    if table.schema.problem is ProblemKind.CLASSIFICATION and _largest_share(labels) > SUSPICIOUS:
        return []
    return [
        f"warning: column {column.name!r} predicts {target!r} alone; leave it out if it is known only after {target!r}"
        for column in table.schema.columns
        if _score(_numbers(frame[column.name], column), labels, table.schema.problem) > SUSPICIOUS
    ]


def _numbers(values: Any, column: Column) -> np.ndarray[Any, Any]:
    return np.asarray(as_numbers(values, column).fillna(-1e9).to_numpy().reshape(-1, 1))


def _score(column: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], problem: ProblemKind) -> float:
    half = np.arange(len(labels)) % 2 == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if problem is ProblemKind.CLASSIFICATION:
            model = DecisionTreeClassifier(max_leaf_nodes=LEAVES, min_samples_leaf=3, random_state=0)
            return float(accuracy_score(labels[~half], model.fit(column[half], labels[half]).predict(column[~half])))
        model = DecisionTreeRegressor(max_leaf_nodes=LEAVES, min_samples_leaf=3, random_state=0)
        return float(r2_score(labels[~half], model.fit(column[half], labels[half]).predict(column[~half])))


def _largest_share(labels: np.ndarray[Any, Any]) -> float:
    return float(np.unique(labels, return_counts=True)[1].max() / len(labels))

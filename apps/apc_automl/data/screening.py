"""A very wide table is narrowed before the search: its slices travel to every process in every generation."""

import numpy as np
from sklearn.feature_selection import f_classif, f_regression

from apc_automl.data.split import Rows
from apc_automl.data.table import Table
from apc_automl.data.table_schema import ColumnKind, ProblemKind

MAXIMUM_COLUMNS = 200


def narrow(table: Table, train: Rows) -> Table:
    """Return the table with its most telling numeric columns, judged one by one on the train part alone.

    The other columns stay. A table of at most 200 columns comes back as it is.
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
    with np.errstate(all="ignore"):
        strengths, _ = score(filled, table.frame[schema.target].iloc[train].to_numpy())
    order = np.argsort(-np.nan_to_num(strengths, nan=-1.0, posinf=np.inf), kind="stable")
    kept = {numeric[position] for position in order[:kept_count]}
    columns = tuple(column for column in schema.columns if column.kind is not ColumnKind.NUMERIC or column.name in kept)
    note = f"{len(schema.columns) - len(columns)} numeric columns that tell least by themselves are left out"
    narrowed = schema.model_copy(update={"columns": columns, "notes": (*schema.notes, note)})
    return Table(narrowed, table.frame[[*(column.name for column in columns), schema.target]])

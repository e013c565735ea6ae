"""The first step of every model: the user's columns as they are in the table become numbers."""

from collections.abc import Mapping
from typing import Any

from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, QuantileTransformer, RobustScaler, StandardScaler

from apc_automl.data.table_schema import TEXT_NUMBERS, Column, ColumnKind, Schema
from apc_automl.skrub_parts import load_skrub
from apc_automl.training.recipes import Setting

Step = tuple[str, Any]
Settings = Mapping[str, Setting]


def build_columns(settings: Settings, schema: Schema, rows: int) -> ColumnTransformer:
    """Return the unfitted step. A date and a text are each their own part: skrub reads one column at a time.

    Args:
        rows: how many rows it will be fitted on.
    """
    scaling = _scaling(settings, rows)
    filled = [("missing", SimpleImputer(strategy=settings["missing"])), *scaling]
    parts: list[tuple[str, Any, Any]] = [
        ("numeric", Pipeline(filled), schema.names(ColumnKind.NUMERIC)),
        ("categorical", _categories(settings), schema.names(ColumnKind.CATEGORICAL)),
    ]
    for number, column in enumerate(schema.of_kind(ColumnKind.DATE)):
        parts.append((f"date_{number}", Pipeline([*date_steps(column), *filled]), column.name))
    for number, column in enumerate(schema.of_kind(ColumnKind.TEXT)):
        parts.append((f"text_{number}", Pipeline([text_step(column), *scaling]), column.name))
    return ColumnTransformer([part for part in parts if part[2]], sparse_threshold=0.0)


def _scaling(settings: Settings, rows: int) -> list[Step]:
    match settings["scaling"]:
        case "standard":
            return [("scaling", StandardScaler())]
        case "robust":
            return [("scaling", RobustScaler(unit_variance=True))]
        case "quantile":
            steps = max(10, min(200, rows // 2))
            normal = QuantileTransformer(n_quantiles=steps, output_distribution="normal", random_state=0)
            return [("scaling", normal)]
    return []


def _categories(settings: Settings) -> OneHotEncoder:
    share = settings["rare_category_share"]
    return OneHotEncoder(
        handle_unknown="infrequent_if_exist" if share else "ignore",
        min_frequency=share or None,
        sparse_output=False,
    )


def date_steps(column: Column) -> list[Step]:
    """Return the unfitted steps that make numbers of a date."""
    skrub = load_skrub()
    return [
        ("read", skrub.ToDatetime(format=column.date_format)),
        ("parts", skrub.DatetimeEncoder(add_weekday=True)),
    ]


def text_step(column: Column) -> Step:
    """Return the unfitted step that makes numbers of a text."""
    encoder = load_skrub().StringEncoder(
        n_components=min(TEXT_NUMBERS, len(column.words)),
        ngram_range=(1, 1),
        analyzer="word",
        vocabulary=list(column.words),
        random_state=0,
    )
    return ("words", encoder)

"""What the report says beyond the gates, measured on the untouched slice that judged the model, after the judgement."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer, make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OrdinalEncoder

from apc_automl.data.table import Table, decode_rows, encode_rows
from apc_automl.data.table_schema import ColumnKind, Schema
from apc_automl.model.model_file import predict, read_predictions
from apc_automl.training import gates
from apc_automl.training.material import Blob, JsonObject, Study
from apc_automl.training.models import date_steps, text_step

MOST_COLUMNS = 60
"""Columns whose importance is measured."""
BINS = 5
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

Numbers = np.ndarray[Any, Any]


def shuffled_rows(schema_bytes: bytes, rows: bytes, seed: int) -> dict[str, bytes]:
    """Return column -> the slice with this column shuffled: what a model loses by it is the column's importance."""
    schema = Schema.model_validate_json(schema_bytes)
    features, labels = decode_rows(rows, schema)
    found = {}
    for number, column in enumerate(schema.columns[:MOST_COLUMNS]):
        order = np.random.default_rng([seed, 0x5EED, number]).permutation(len(features))
        moved = features.assign(**{column.name: features[column.name].to_numpy()[order], schema.target: labels})
        found[column.name] = encode_rows(Table(schema, moved))
    return found


def review(study: Study, untouched: Blob, said: bytes, shuffled: Mapping[str, bytes]) -> JsonObject:
    """Return importances, confusion or residuals, calibration, and a plain strong model on the same rows.

    Args:
        said: the model's predictions for the slice, as the reader of models gives them.
        shuffled: column -> its predictions for the slice with this column shuffled.
    """
    schema = Schema.model_validate_json(study.schema.data)
    _, labels = decode_rows(untouched.data, schema)
    predictions = read_predictions(said, schema, len(labels))
    loss = gates.loss_of(labels, predictions, schema.classes)
    importances = {
        name: round(gates.loss_of(labels, read_predictions(one, schema, len(labels)), schema.classes) - loss, 6)
        for name, one in shuffled.items()
    }
    ranked = dict(sorted(importances.items(), key=lambda item: (-item[1], item[0])))
    return {
        "importances": ranked,
        "columns_left_out": max(0, len(schema.columns) - MOST_COLUMNS),
        "plain": _plain(study, untouched, schema, predictions),
        "guessing": _guessing(study, schema, labels),
        **(_of_classes(schema, labels, predictions) if schema.classes else _of_numbers(labels, predictions)),
    }


def _plain(study: Study, untouched: Blob, schema: Schema, ours: Numbers) -> JsonObject:
    """Judge scikit-learn's gradient boosting with its defaults, on the rows that the winner was trained on.

    Args:
        ours: what the winner says of the untouched rows.
    """
    import pandas as pd

    parts = [decode_rows(part.data, schema) for part in (study.train, study.held_out, study.rest) if part]
    features, target = pd.concat([one for one, _ in parts]), np.concatenate([labels for _, labels in parts])
    unseen, labels = decode_rows(untouched.data, schema)
    model = _plain_model_of_pieces(schema, study.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predictions = predict(model.fit(features, target), schema, unseen)
    loss = gates.loss_of(labels, predictions, schema.classes)
    baseline = gates.baseline_loss(parts[0][1], labels, schema.classes)
    return {
        "name": "HistGradientBoosting with its defaults",
        "loss": round(loss, gates.DIGITS),
        "outcome": gates.outcome_of(loss, baseline),
        "score": gates.score_words(labels, predictions, schema.classes),
        "is_clear": _is_clear(_row_losses(labels, predictions, schema), _row_losses(labels, ours, schema)),
    }


def _guessing(study: Study, schema: Schema, labels: Numbers) -> JsonObject:
    """Say what the trivial baseline reaches: it always says the most frequent class, or the mean."""
    _, known = decode_rows(study.train.data, schema)
    predictions = gates.trivial_predictions(known, len(labels), schema.classes)
    return {
        "score": gates.score_words(labels, predictions, schema.classes),
        "loss": round(gates.loss_of(labels, predictions, schema.classes), gates.DIGITS),
    }


def _row_losses(labels: Numbers, predictions: Numbers, schema: Schema) -> Numbers:
    errors = gates.errors_of(labels, predictions, schema.classes)
    return errors if schema.classes else errors**2


def _is_clear(one: Numbers, other: Numbers) -> bool:
    """Return whether the mean losses of two models differ by more than twice the standard error of their difference."""
    differences = one - other
    if len(differences) < 2:
        return False
    return bool(abs(differences.mean()) > 2 * differences.std(ddof=1) / np.sqrt(len(differences)))


def _plain_model_of_pieces(schema: Schema, seed: int) -> Any:
    """Return `plain_model`, for a table with dates or texts after these have been taken to pieces as for the swarms."""
    model = plain_model(schema, seed)
    pieces = [
        *((date_steps(column), column.name) for column in schema.of_kind(ColumnKind.DATE)),
        *(([text_step(column)], column.name) for column in schema.of_kind(ColumnKind.TEXT)),
    ]
    if not pieces:
        return model
    parts = [(f"piece_{number}", Pipeline(steps), name) for number, (steps, name) in enumerate(pieces)]
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    columns = ColumnTransformer(
        [
            *parts,
            ("numbers", "passthrough", schema.names(ColumnKind.NUMERIC)),
            ("codes", codes, schema.names(ColumnKind.CATEGORICAL)),
        ],
        sparse_threshold=0.0,
    )
    return make_pipeline(columns, model[-1])


def plain_model(schema: Schema, seed: int) -> Any:
    """Return what a person would try first: gradient boosting as it comes, texts and categories as codes."""
    texts = [column.name for column in schema.columns if column.kind is not ColumnKind.NUMERIC]
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    numbers = make_column_selector(dtype_include="number")
    kind = HistGradientBoostingClassifier if schema.classes else HistGradientBoostingRegressor
    return make_pipeline(make_column_transformer(("passthrough", numbers), (codes, texts)), kind(random_state=seed))


def _of_classes(schema: Schema, labels: Numbers, predictions: Numbers) -> JsonObject:
    names = list(schema.classes)
    guessed = [names[place] for place in predictions.argmax(axis=1)]
    counts = {(one, other): 0 for one in names for other in names}
    for one, other in zip(labels.tolist(), guessed, strict=True):
        counts[one, other] += 1
    sure = predictions.max(axis=1)
    hits = np.array([one == other for one, other in zip(labels.tolist(), guessed, strict=True)])
    return {
        "confusion": {
            "classes": [str(one) for one in names],
            "counts": [[counts[one, other] for other in names] for one in names],
        },
        "calibration": _calibration(sure, hits),
    }


def _calibration(sure: Numbers, hits: Numbers) -> list[JsonObject]:
    """Compare how sure the model is with how often it is right, in equal parts of the rows by how sure it is."""
    order = np.argsort(sure, kind="stable")
    return [
        {
            "rows": len(part),
            "says": round(float(sure[part].mean()), 4),
            "is_right": round(float(hits[part].mean()), 4),
        }
        for part in np.array_split(order, min(BINS, len(order)))
    ]


def _of_numbers(labels: Numbers, predictions: Numbers) -> JsonObject:
    residuals = predictions - labels
    order = np.argsort(predictions, kind="stable")
    return {
        "residuals": {f"{share:.0%}": round(float(np.quantile(residuals, share)), 6) for share in QUANTILES},
        "calibration": [
            {
                "rows": len(part),
                "says": round(float(predictions[part].mean()), 6),
                "is_right": round(float(labels[part].mean()), 6),
            }
            for part in np.array_split(order, min(BINS, len(order)))
        ],
    }

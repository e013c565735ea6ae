"""Peers outside the protocol, for `apc automl bench peers`: a random search and gradient boosting as it comes.

Each runs in a training process, on one thread, over the rows and the spaces of the swarms.
"""

import random
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from apc_automl.data.split import make_folds
from apc_automl.data.table import decode_groups, decode_rows
from apc_automl.data.table_schema import Schema
from apc_automl.model.model_file import predict
from apc_automl.training import gates
from apc_automl.training.material import Blob, Study
from apc_automl.training.models import build_baseline, build_pipeline
from apc_automl.training.recipes import SWARMS, Recipe, families_of
from apc_automl.training.reviewing import plain_model
from apc_automl.training.search import drawn_recipe

FOLDS = 4
"""As many as the swarms use."""

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Found:
    """The best recipe of a random search, by cross-validation."""

    recipe: bytes
    loss: float
    tried: int


def search_at_random(study: Study, seconds: float, seed: int) -> Found | None:
    """Draw recipes from all spaces alike until the time is over; None when not one could be measured in it."""
    end = time.monotonic() + seconds
    schema = Schema.model_validate_json(study.schema.data)
    features, labels = _rows(study, schema)
    groups = [decode_groups(part.data, schema) for part in (study.train, study.held_out)]
    together = None if groups[0] is None else np.concatenate([one for one in groups if one is not None])
    folds = make_folds(schema, labels, together, FOLDS, study.seed)
    families = [family for swarm in SWARMS for family in families_of(swarm, schema.problem)]
    generator, tried, best = random.Random(seed), set[str](), None
    while time.monotonic() < end:
        recipe = drawn_recipe(families, "random", schema, tried, generator)
        tried.add(recipe.method)
        loss = _cross_validated(recipe, schema, folds, study.seed, features, labels)
        if time.monotonic() < end and (best is None or loss < best[0]):
            best = (loss, recipe)
    return None if best is None else Found(best[1].canonical(), best[0], len(tried))


def judge_recipe(recipe_bytes: bytes, study: Study, untouched: Blob) -> float:
    """Return the loss of a recipe on untouched rows, trained on all others."""
    schema = Schema.model_validate_json(study.schema.data)
    model = build_pipeline(Recipe.read(recipe_bytes), schema, study.seed, len(_rows(study, schema, rest=True)[0]))
    return _judged(model, schema, study, untouched)


def judge_plain(study: Study, untouched: Blob) -> float:
    """Return the loss of gradient boosting with its defaults on untouched rows, trained on all others."""
    schema = Schema.model_validate_json(study.schema.data)
    return _judged(plain_model(schema, study.seed), schema, study, untouched)


def judge_baseline(study: Study, untouched: Blob) -> float:
    """Return the loss of the trivial baseline on untouched rows."""
    schema = Schema.model_validate_json(study.schema.data)
    return _judged(build_baseline(schema), schema, study, untouched)


def _judged(model: Any, schema: Schema, study: Study, untouched: Blob) -> float:
    features, labels = _rows(study, schema, rest=True)
    unseen, truth = decode_rows(untouched.data, schema)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predictions = predict(model.fit(features, labels), schema, unseen)
    return gates.loss_of(truth, predictions, schema.classes)


def _rows(study: Study, schema: Schema, *, rest: bool = False) -> tuple[pd.DataFrame, Numbers]:
    parts = [study.train, study.held_out, *([study.rest] if rest and study.rest else [])]
    decoded = [decode_rows(part.data, schema) for part in parts]
    features = pd.concat([one for one, _ in decoded], ignore_index=True)
    return features, np.concatenate([labels for _, labels in decoded])


def _cross_validated(
    recipe: Recipe,
    schema: Schema,
    folds: list[tuple[Numbers, Numbers]],
    seed: int,
    features: pd.DataFrame,
    labels: Numbers,
) -> float:
    """Return the mean loss over the folds; infinite for a recipe that these rows cannot carry."""
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for train, test in folds:
            model = build_pipeline(recipe, schema, seed, len(train))
            try:
                predictions = predict(model.fit(features.iloc[train], labels[train]), schema, features.iloc[test])
            except (ValueError, ArithmeticError):
                return float("inf")
            losses.append(gates.loss_of(labels[test], predictions, schema.classes))
    return float(np.mean(losses))

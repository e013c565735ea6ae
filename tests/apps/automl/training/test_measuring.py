"""The engine from a table to a judged model."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apc_automl.data.checks import MAXIMUM_COLUMNS
from apc_automl.data.table import decode_rows
from apc_automl.data.table_schema import Schema
from apc_automl.errors import ModelFileRefused
from apc_automl.model.model_file import load_model, predict, write_predictions
from apc_automl.training.gates import NONE_PASSED
from apc_automl.training.material import Blob, JsonObject, Prepared, Study
from apc_automl.training.measuring import measure, prepare, refit, rescore, time_training, unusable, validate
from apc_automl.training.recipes import SWARMS, Recipe, families_of
from apc_automl.training.search import Place, default_recipe, next_recipe

SEED = 7


def first_recipe(swarm: str, study: Study) -> Recipe:
    schema = Schema.model_validate_json(study.schema.data)
    return next_recipe(Place(seed=study.seed, swarm=swarm, round=1, generation=0), schema, [], [])


def predictions_of(model: bytes, study: Study, rows: Blob, times: int = 1) -> list[bytes]:
    schema = Schema.model_validate_json(study.schema.data)
    features, _ = decode_rows(rows.data, schema)
    return [write_predictions(predict(load_model(model), schema, features)) for _ in range(times)]


def rescored(model: Blob, study: Study) -> JsonObject:
    return rescore(model, predictions_of(model.data, study, study.held_out)[0], study)


def test_predictions_of_another_size_or_that_are_no_numbers_are_refused(study: Study) -> None:
    measured = measure(first_recipe("linear", study).canonical(), study)
    [said] = predictions_of(measured.model, study, study.held_out)
    for forged in (said[:-8], said + said, b"\xff" * len(said)):
        with pytest.raises(ModelFileRefused):
            rescore(Blob.of(measured.model), forged, study)


def test_a_model_that_cannot_be_read_passes_no_gate(prepared: Prepared, study: Study) -> None:
    document = unusable(first_recipe("linear", study).canonical(), study, Blob.of(prepared.untouched[0]))
    assert document["gates"] == NONE_PASSED
    assert document["loss"] == document["baseline_loss"]


@pytest.mark.parametrize("swarm", SWARMS)
def test_every_swarm_beats_the_baseline_on_the_default_table(swarm: str, study: Study) -> None:
    measured = measure(first_recipe(swarm, study).canonical(), study)
    assert measured.document["gates"]["outcome"] > 0.5
    assert measured.document["loss"] < measured.document["baseline_loss"]


def test_measuring_twice_gives_the_same_model_and_numbers(study: Study) -> None:
    recipe = first_recipe("trees", study).canonical()
    assert measure(recipe, study) == measure(recipe, study)


def test_the_sentinel_finds_what_the_builder_declared(study: Study) -> None:
    measured = measure(first_recipe("linear", study).canonical(), study)
    again = rescored(Blob.of(measured.model), study)
    assert again["outcome"] == measured.document["gates"]["outcome"]
    assert again["audit"] == 1.0


def test_a_forged_hash_shows_in_the_audit(study: Study) -> None:
    measured = measure(first_recipe("linear", study).canonical(), study)
    forged = Blob("sha256:" + "0" * 64, measured.model)
    assert rescored(forged, study)["audit"] == 0.75


def test_the_refitted_model_passes_on_untouched_data(prepared: Prepared, study: Study) -> None:
    recipe = first_recipe("linear", study).canonical()
    final = refit(recipe, study)
    assert final.model != measure(recipe, study).model
    untouched = Blob.of(prepared.untouched[0])
    first, again = predictions_of(final.model, study, untouched, times=2)
    gates = validate(Blob.of(final.model), first, again, recipe, study, untouched)["gates"]
    assert gates["rtf"] == gates["audit"] == 1.0
    assert gates["outcome"] > 0.5
    assert gates["drift_risk"] <= 0.3


def test_regression_is_measured_by_squared_error(diabetes_table: Path) -> None:
    prepared = prepare(str(diabetes_table), "target", None, 7, 2, 6000)
    study = Study(Blob.of(prepared.schema), Blob.of(prepared.train), Blob.of(prepared.held_out), 7)
    document = measure(first_recipe("linear", study).canonical(), study).document
    assert document["loss_name"] == "mean squared error"
    assert 0.2 < document["gates"]["outcome"] < 0.8


@pytest.mark.parametrize("is_text", [True, False])
def test_a_wide_table_with_holes_is_screened(is_text: bool, tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    frame = pd.DataFrame(generator.normal(size=(120, 250))).rename(columns=lambda number: f"x{number}")
    signal = frame["x3"] + frame["x77"]
    frame["label"] = np.where(signal > 0, "up", "down") if is_text else signal
    frame.loc[::9, "x3"] = np.nan
    frame.to_csv(tmp_path / "wide.csv", index=False)
    prepared = prepare(str(tmp_path / "wide.csv"), "label", None, 7, 2, 6000)
    study = Study(Blob.of(prepared.schema), Blob.of(prepared.train), Blob.of(prepared.held_out), 7)
    schema = Schema.model_validate_json(prepared.schema)
    assert len(schema.columns) == MAXIMUM_COLUMNS
    assert {"x3", "x77"} <= {column.name for column in schema.columns}
    assert any("50 numeric columns" in note for note in schema.notes)
    for swarm in SWARMS:
        measured = measure(first_recipe(swarm, study).canonical(), study)
        assert measured.document["gates"]["rtf"] == 1.0
        assert rescored(Blob.of(measured.model), study)["audit"] == 1.0


def test_noise_is_told_from_signal(tmp_path: Path) -> None:
    lines = [f"{number * 7919 % 104729},{'ab'[number * 104651 // 97 % 2]}" for number in range(300)]
    path = tmp_path / "noise.csv"
    path.write_text("number,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    prepared = prepare(str(path), "label", None, 7, 2, 6000)
    study = Study(Blob.of(prepared.schema), Blob.of(prepared.train), Blob.of(prepared.held_out), 7)
    for swarm in SWARMS:
        assert measure(first_recipe(swarm, study).canonical(), study).document["gates"]["outcome"] < 0.5


@pytest.mark.parametrize("counts", [(150, 120, 70), (300, 8)], ids=["sorted", "rare"])
def test_rows_of_one_class_alone_end_no_search(counts: tuple[int, ...], tmp_path: Path) -> None:
    """The first rows of a table that is sorted by its target, a small share of one with a rare class."""
    labels = np.repeat([f"kind {number}" for number in range(len(counts))], counts)
    columns = np.random.default_rng(SEED).normal(size=(len(labels), 3))
    pd.DataFrame(columns, columns=list("abc")).assign(kind=labels).to_csv(tmp_path / "table.csv", index=False)
    ready = prepare(str(tmp_path / "table.csv"), "kind", None, SEED, 1, 6000)
    study = Study(Blob.of(ready.schema), Blob.of(ready.train), Blob.of(ready.held_out), SEED)
    families = families_of("linear", Schema.model_validate_json(ready.schema).problem)
    for recipe in (default_recipe(family, "linear").canonical() for family in families):
        assert time_training(recipe, study) > 0
        assert measure(recipe, study).document["loss"] > 0

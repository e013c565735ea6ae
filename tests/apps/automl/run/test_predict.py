"""A model from its folder: predictions for new rows, and refusals that name what differs."""

import json
from pathlib import Path

import pandas
import pytest

from apc_automl.data.schema import Schema
from apc_automl.run.predict import predict_table, read_model_folder
from apc_automl.training.material import Blob, Study
from apc_automl.training.measuring import measure, prepare
from apc_automl.training.recipes import Recipe
from apc_automl.training.spaces import FAMILIES, default_settings
from apc_console.errors import InputUnusable

ROWS = [
    f"{1 + n % 28:02d}.{1 + n % 12:02d}.2024;{n * 37 % 101};{'red' if n % 3 else 'blue'};{'ab'[n % 2]}"
    for n in range(90)
]
TABLE = "\n".join(["when;size;colour;kind", *ROWS]) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that a run writes, of a model of a small table."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "table.csv").write_text(TABLE)
    table = prepare(str(folder / "table.csv"), "kind", None, 7, 2, 3000)
    space = FAMILIES["random_forest"]
    recipe = Recipe(
        family="random_forest",
        preprocessing=default_settings(space.preprocessing),
        parameters=default_settings(space.parameters),
    )
    study = Study(Blob.of(table.schema), Blob.of(table.train), Blob.of(table.held_out), 7)
    model = measure(recipe.canonical(), study).model
    (folder / "model.skops").write_bytes(model)
    record = {"model": {"hash": Blob.of(model).hash}, "schema": json.loads(table.schema)}
    (folder / "model.json").write_text(json.dumps(record))
    return folder


def test_new_rows_are_predicted_with_dates_and_categories(folder: Path, tmp_path: Path) -> None:
    assert predict_table(folder, folder / "table.csv", tmp_path / "out.csv") == 90
    written = pandas.read_csv(tmp_path / "out.csv")
    classes = Schema.model_validate(read_model_folder(folder)[0]["schema"]).classes
    assert set(written["predicted kind"]) <= set(classes)
    assert (written[[f"probability of {one}" for one in classes]].sum(axis=1) - 1).abs().max() < 1e-9


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("when;size\n1.1.2024;5\n", "lacks the columns 'colour'; it has 'when', 'size'"),
        (TABLE.replace(";37;", ";many;"), "column 'size' holds numbers in the model; row 2 has 'many'"),
    ],
)
def test_a_table_that_differs_is_refused_with_the_column(folder: Path, tmp_path: Path, table: str, reason: str) -> None:
    (tmp_path / "new.csv").write_text(table)
    with pytest.raises(InputUnusable, match=reason):
        predict_table(folder, tmp_path / "new.csv", tmp_path / "out.csv")


def test_a_folder_without_a_model_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputUnusable, match="name the folder that `apc automl run` wrote"):
        read_model_folder(tmp_path)


def test_a_model_that_is_not_the_one_of_its_record_is_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("model.json", "model.skops"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    read_model_folder(tmp_path)
    (tmp_path / "model.skops").write_bytes((folder / "model.skops").read_bytes() + b"x")
    with pytest.raises(InputUnusable, match="is not the model that"):
        read_model_folder(tmp_path)

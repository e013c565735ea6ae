"""A model from its folder: predictions for new rows, and refusals that name what differs."""

import json
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pandas
import pytest

from apc_automl.data.columns import differences
from apc_automl.data.table_schema import Column, ColumnKind, ProblemKind, Schema
from apc_automl.report.run_log import RunLog
from apc_automl.run.predict import WrittenModel, checked_promise, predict_table, verify_model
from apc_automl.training.material import Blob, Study
from apc_automl.training.measuring import measure, prepare
from apc_automl.training.recipes import FAMILIES, Recipe, default_settings
from apc_cli.errors import InputUnusable, LogDiffers

WORDS = ("refund", "late", "thanks", "broken", "parcel")
ROWS = [
    f"{1 + n % 28:02d}.{1 + n % 12:02d}.2024;{n * 37 % 101},5;{'red' if n % 3 else 'blue'};"
    f"order {n}: {WORDS[n % 5]} {WORDS[n % 3]};{'ab'[n % 2]}"
    for n in range(90)
]
TABLE = "\n".join(["when;size;colour;remark;kind", *ROWS]) + "\n"

ALONE = """
import importlib.abc, sys

class Nothing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if first in {"pydantic", "structlog", "asyncpg", "typer", "aio_pika", "faststream"} or (
            first.startswith("apc_") and first != "apc_automl"
        ):
            raise ModuleNotFoundError(f"{name} is not installed")

sys.meta_path.insert(0, Nothing())
import pandas
from apc_automl.loading import load_model
rows = pandas.read_csv(sys.argv[1] + "/table.csv", sep=";", decimal=",")
print(",".join(load_model(sys.argv[1]).predict(rows)))
"""
"""Two lines, where nothing is installed but scikit-learn, skrub, skops and what they need."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that a run writes, of a model of a small table."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "table.csv").write_text(TABLE)
    table = prepare(str(folder / "table.csv"), "kind", None, 7, 2, 3000)
    space = FAMILIES["logistic"]
    recipe = Recipe(
        family="logistic",
        preprocessing=default_settings(space.preprocessing),
        parameters=default_settings(space.parameters),
    )
    study = Study(Blob.of(table.schema), Blob.of(table.train), Blob.of(table.held_out), 7)
    model = measure(recipe.canonical(), study).model
    (folder / "model.skops").write_bytes(model)
    record = {
        "run_id": "run-1",
        "status": "promoted",
        "log": {"packet_id": str(UUID(int=1))},
        "model": {"hash": Blob.of(model).hash},
        "schema": json.loads(table.schema),
    }
    (folder / "model.json").write_text(json.dumps(record))
    return folder


@pytest.mark.long
def test_new_rows_are_predicted_with_dates_texts_and_categories(folder: Path, tmp_path: Path) -> None:
    assert predict_table(folder, folder / "table.csv", tmp_path / "out.csv")[0] == 90
    written = pandas.read_csv(tmp_path / "out.csv")
    schema = WrittenModel.read(folder).record.columns
    assert schema is not None
    classes = schema.classes
    assert set(written["predicted kind"]) <= set(classes)
    assert (written[[f"probability of {one}" for one in classes]].sum(axis=1) - 1).abs().max() < 1e-9
    alone = subprocess.run([sys.executable, "-c", ALONE, str(folder)], capture_output=True, text=True, timeout=120)
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout.strip().split(",") == written["predicted kind"].tolist(), "the model reads the table as it is"


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("when;size\n1.1.2024;5\n", "lacks the columns 'colour', 'remark'; it has 'when', 'size'"),
        (TABLE.replace(";37,5;", ";many;"), "column 'size' holds numbers in the model; row 2 has 'many'"),
        (
            TABLE.replace("02.02.2024;", "tomorrow;", 1),
            "column 'when' holds dates like %d.%m.%Y in the model; row 2 has 'tomorrow'",
        ),
    ],
)
def test_a_table_that_differs_is_refused_with_the_column(folder: Path, tmp_path: Path, table: str, reason: str) -> None:
    (tmp_path / "new.csv").write_text(table)
    with pytest.raises(InputUnusable, match=reason):
        predict_table(folder, tmp_path / "new.csv", tmp_path / "out.csv")


def test_what_new_rows_have_or_lack_is_said() -> None:
    columns = (Column(name="a", kind=ColumnKind.NUMERIC), Column(name="b", kind=ColumnKind.TEXT, words=("x", "y")))
    schema = Schema(target="y", problem=ProblemKind.REGRESSION, label_type="number", columns=columns)
    new = pandas.DataFrame({"a": [1.0, None], "b": ["x", "y"], "c": [1, 2]})
    assert differences(new, schema) == [
        "not used by the model: 'c'",
        "missing values that training had none of: 'a'",
    ]


def test_a_folder_without_a_model_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputUnusable, match="name the folder that `apc automl run` wrote"):
        WrittenModel.read(tmp_path)


async def test_a_model_that_is_not_the_one_of_its_record_is_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("model.json", "model.skops"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    WrittenModel.read(tmp_path)
    (tmp_path / "model.skops").write_bytes((folder / "model.skops").read_bytes() + b"x")
    with pytest.raises(InputUnusable, match="is not the model that"):
        WrittenModel.read(tmp_path)
    with pytest.raises(LogDiffers, match="`apc automl report --run-id"):  # exit code 4
        await verify_model(tmp_path)


def test_a_log_without_the_run_says_where_to_look(folder: Path) -> None:
    record = WrittenModel.read(folder).record
    with pytest.raises(LogDiffers, match=r"change to the folder where .* ran, or set APC_DATA_DIR"):
        checked_promise(record, RunLog(record.run_id, (record.run_id,), (), (), (), {}))

"""A saved model is used with scikit-learn, skrub and skops alone: by two lines, and by `load_model`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from apc_automl.data.table import read_table
from apc_automl.model.model_types import BEYOND_SKOPS
from apc_automl.training.material import Blob, Study
from apc_automl.training.measuring import measure, prepare
from apc_automl.training.search import default_recipe

ALONE = """
import sys

OWN = {"apc_bus", "apc_agents", "apc_minds", "apc_contracts", "apc_cli", "apc_log", "apc_client", "apc_orchestrator"}
OTHERS = OWN | {"pydantic", "structlog", "typer", "asyncpg", "aio_pika", "orjson", "rfc8785", "openpyxl", "defusedxml"}


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OTHERS:
            raise ImportError(f"{name} is not installed here")


sys.meta_path.insert(0, Absent())
"""
BOTH_WAYS = """
import json, pandas, skops.io
model = skops.io.load("model.skops", trusted=json.load(open("model.json"))["trusted"])
said = model.predict(pandas.read_csv("table.csv")).tolist()

from apc_automl.loading import load_model
assert load_model(".").predict(pandas.read_csv("table.csv")).tolist() == said
print(said)
"""


def table() -> str:
    words = ("late and broken", "great, thanks", "slow but fine", "broken again")
    lines = [f"{1 + n % 28:02d}.{1 + n % 12:02d}.2024;order {n}: {words[n % 4]};{n % 7};{n % 2}" for n in range(120)]
    return "\n".join(["when;remark;size;y", *lines]) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that has parts of skrub, as a run writes it."""
    folder = tmp_path_factory.mktemp("model")
    source = folder / "source.csv"
    source.write_text(table())
    prepared = prepare(str(source), "y", None, 7, 1, 3000)
    study = Study(Blob.of(prepared.schema), Blob.of(prepared.train), Blob.of(prepared.held_out), 7)
    model = measure(default_recipe("logistic", "linear").canonical(), study).model
    (folder / "model.skops").write_bytes(model)
    (folder / "model.json").write_text(json.dumps({"model": {"hash": Blob.of(model).hash}, "trusted": BEYOND_SKOPS}))
    read_table(source, "y").frame.drop(columns="y").to_csv(folder / "table.csv", index=False)
    return folder


@pytest.mark.long
def test_it_needs_no_other_library(folder: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ALONE + BOTH_WAYS], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert set(json.loads(ended.stdout)) <= {0, 1}

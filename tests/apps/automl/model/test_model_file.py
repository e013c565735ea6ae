"""Model files: the same bytes in any process (what they refuse: tests/security/automl)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from apc_automl.model.model_file import dump_model, load_model
from apc_automl.training.material import Study
from apc_automl.training.measuring import measure
from apc_automl.training.recipes import FAMILIES, Recipe, default_settings

FRESH_PROCESS = """
import hashlib, sys
from apc_automl.training.material import Blob, Study
from apc_automl.training.recipes import Recipe
from apc_automl.training.recipes import FAMILIES, default_settings
from apc_automl.training.measuring import measure, prepare
import threadpoolctl
threadpoolctl.threadpool_limits(1)
noise = [bytes([255]) * size for size in range(1, 4000, 7)]
del noise
for path, target, *names in (line.split(",") for line in sys.argv[1:]):
    table = prepare(path, target, None, 7, 2, 6000)
    study = Study(Blob.of(table.schema), Blob.of(table.train), Blob.of(table.held_out), 7)
    for name in names:
        family = FAMILIES[name]
        recipe = Recipe(family=name, preprocessing=default_settings(family.preprocessing),
                        parameters=default_settings(family.parameters))
        print(target, name, hashlib.sha256(measure(recipe.canonical(), study).model).hexdigest())
"""


def hashes_in_a_fresh_process(tables: list[list[str]], hash_seed: str) -> list[str]:
    """Each table: its path, its target, the families to fit."""
    done = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, *(",".join(table) for table in tables)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
    )
    return sorted(done.stdout.splitlines())


def mixed_table(folder: Path) -> Path:
    """Numbers with holes, texts, three classes."""
    path = folder / "mixed.csv"
    lines = ["width,height,colour,kind"]
    for number in range(180):
        width = "" if number % 11 == 0 else f"{(number * 37 % 101) / 7}"
        colour = ("red", "green", "blue", "")[number % 4]
        lines.append(f"{width},{number % 13},{colour},{('ash', 'oak', 'elm')[number * 7 % 3]}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def families_for(problem: str) -> list[str]:
    return [name for name, family in FAMILIES.items() if problem in family.problems]


@pytest.mark.long
@pytest.mark.parametrize("families", [2, pytest.param(None, marks=pytest.mark.faults, id="all")])
def test_two_processes_dump_the_same_models(tmp_path: Path, diabetes_table: Path, families: int | None) -> None:
    kinds, figures = families_for("classification")[:families], families_for("regression")[:families]
    table = str(mixed_table(tmp_path))
    first = hashes_in_a_fresh_process([[table, "kind", *kinds], [str(diabetes_table), "target", *figures]], "1")
    # In another order, so that the heap and every cache look different.
    again = hashes_in_a_fresh_process(
        [[str(diabetes_table), "target", *figures[::-1]], [table, "kind", *kinds[::-1]]], "2"
    )
    assert first == again
    assert len(first) == len(kinds) + len(figures)


@pytest.mark.parametrize("family", families_for("classification"))
def test_a_model_survives_its_file(family: str, study: Study) -> None:
    space = FAMILIES[family]
    recipe = Recipe(
        family=family,
        preprocessing=default_settings(space.preprocessing),
        parameters=default_settings(space.parameters),
    )
    measured = measure(recipe.canonical(), study)
    assert measured.document["gates"]["rtf"] == 1.0
    assert measured.document["gates"]["audit"] == 1.0
    assert dump_model(load_model(measured.model)) == measured.model

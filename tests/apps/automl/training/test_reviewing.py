"""What a judged model is compared with: a plain strong model and guessing, on the same rows."""

from pathlib import Path

import numpy as np

from apc_automl.model.model_file import write_predictions
from apc_automl.training.material import Blob, JsonObject, Study
from apc_automl.training.measuring import prepare
from apc_automl.training.reviewing import review

WORDS = ("refund", "late", "thanks", "broken")


def reviewed(folder: Path, sure: float) -> JsonObject:
    """Review a model that gives every row of a table of dates and texts this probability of the second class."""
    lines = [f"{1 + n % 28:02d}.05.2024;order {n}: {WORDS[n % 4]} {n % 9};{n % 2}" for n in range(200)]
    path = folder / "table.csv"
    path.write_text("\n".join(["when;remark;y", *lines]) + "\n", encoding="utf-8")
    table = prepare(str(path), "y", None, 7, 1, 3000)
    study = Study(Blob.of(table.schema), Blob.of(table.train), Blob.of(table.held_out), 7)
    untouched = Blob.of(table.untouched[0])
    rows = len(untouched.data.splitlines()) - 1
    return review(study, untouched, write_predictions(np.tile([1 - sure, sure], (rows, 1))), {})


def test_the_plain_model_gets_dates_and_texts_in_pieces(tmp_path: Path) -> None:
    """As codes it could use neither, and looked worse than guessing."""
    found = reviewed(tmp_path, 0.5)
    assert found["plain"]["outcome"] > 0.9 and found["plain"]["is_clear"]
    assert found["guessing"]["loss"] > 0.69

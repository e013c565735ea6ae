"""Use the model of a run in Python; needs scikit-learn, skrub and skops, and nothing else of this distribution.

from apc_automl.loading import load_model
load_model("out").predict(pandas.read_csv("new.csv"))
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import skops.io

from apc_automl.model.model_types import BEYOND_SKOPS, MARK, load_skrub, refusal_of_file

RECORDS = {"model": ("model.json", "candidate.json"), "all_rows": ("all_rows.json",)}


def load_model(folder: str | Path, name: str = "model") -> Any:
    """Return the fitted scikit-learn pipeline in a folder of `apc automl run`; it takes the columns of the table.

    Args:
        folder: where model.skops and model.json are.
        name: `model`, or `all_rows` for the recipe trained on every row.

    Raises:
        ValueError: no model is there, its bytes are not those that the record names, or it names a type that no model
            of ours needs.
    """
    record = find_record(Path(folder), name)
    if record is None:
        raise ValueError(f"{folder} has no {' or '.join(RECORDS[name])}; name the folder that `apc automl run` wrote")
    data = record.with_suffix(".skops").read_bytes()
    try:
        promised = json.loads(record.read_text(encoding="utf-8"))["model"]["hash"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"{record} is no record of a model: {error}") from error
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != promised:
        raise ValueError(f"{record.with_suffix('.skops')} is not the model that {record.name} names")
    refusal = refusal_of_file(data)
    if refusal is not None:
        raise ValueError(refusal)
    if MARK in data:
        load_skrub()
    return skops.io.loads(data, trusted=BEYOND_SKOPS)


def find_record(folder: Path, name: str = "model") -> Path | None:
    """Return the record beside the model in a folder; None where there is none."""
    return next((folder / file for file in RECORDS[name] if (folder / file).is_file()), None)

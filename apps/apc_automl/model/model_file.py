"""Model files: a fitted pipeline as bytes that depend on nothing else, and back without running code.

The format is that of skops: a zip of `schema.json` and arrays. Three things make the same model the same bytes
in any process: no object has an identity (each is built by itself, as often as it occurs), an array is named by
its content, and entries stand in order without times.
"""

import ast
import hashlib
import io
import json
import warnings
import zipfile
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import skops.io
from skops.io._utils import SaveContext, get_state

from apc_automl.data.table_schema import ProblemKind, Schema
from apc_automl.errors import ModelFileRefused
from apc_automl.model.model_types import (
    BEYOND_SKOPS,
    FORMAT,
    SCHEMA,
    ModelTree,
    nodes_of,
    refusal_of_file,
    refusal_of_schema,
)

EPOCH = (1980, 1, 1, 0, 0, 0)
UNIX = 3
HEADER = 10
"""Bytes before the header of an array (NPY 1.0); the last two are its length."""


def dump_model(model: Any) -> bytes:
    """Return the bytes of a fitted model.

    Raises:
        ModelFileRefused: the model has a part of a type that no model of ours needs.
    """
    with zipfile.ZipFile(io.BytesIO(), "w") as made:
        # As skops.io.dumps does, without writing and reading the indented schema: that takes three times as long.
        context = SaveContext(made)
        schema = get_state(model, context) | {"protocol": FORMAT, "_skops_version": skops.__version__}
        context.clear_memo()
        refusal = refusal_of_schema(schema)
        if refusal is not None:
            raise ModelFileRefused(refusal)
        arrays = _name_arrays(schema, made.read)
    return _zip({SCHEMA: json.dumps(schema, separators=(",", ":")).encode(), **arrays})


def load_model(data: bytes) -> Any:
    """Return the model in bytes made by `dump_model`.

    A file of trusted types can still hold numbers that no training gives; bytes of others are for
    `model_reader.ModelReader`, which reads them in a confined process.

    Raises:
        ModelFileRefused: the bytes are no model file, or name a type that is not on the list (`model_types`);
            nothing was built then.
    """
    try:
        refusal = refusal_of_file(data)
        if refusal is not None:
            raise ModelFileRefused(refusal)
        return skops.io.loads(data, trusted=BEYOND_SKOPS)
    except ModelFileRefused:
        raise
    except Exception as error:
        # Broken bytes can raise nearly anything; for the caller it is one thing.
        raise ModelFileRefused(f"these bytes are no model file: {error}") from error


def _name_arrays(schema: ModelTree, read: Callable[[str], bytes]) -> dict[str, bytes]:
    """Drop the identities and rename each array to the hash of its content; content by name."""
    arrays: dict[str, bytes] = {}
    named: dict[str, str] = {}
    for node in nodes_of(schema):
        node.pop("__id__", None)
        if "file" in node:
            made_as = node["file"]
            if made_as not in named:
                content = _without_padding(read(made_as))
                named[made_as] = hashlib.sha256(content).hexdigest() + ".npy"
                arrays[named[made_as]] = content
            node["file"] = named[made_as]
    return arrays


def _without_padding(content: bytes) -> bytes:
    """Return the array with zeros between the fields of its records: what stands there is left over memory."""
    start = HEADER + int.from_bytes(content[HEADER - 2 : HEADER], "little")
    size, gaps = _gaps(content[HEADER:start])
    if not gaps:
        return content
    clean = bytearray(content)
    np.frombuffer(clean, np.uint8, offset=start).reshape(-1, size)[:, gaps] = 0
    return bytes(clean)


@lru_cache(maxsize=64)
def _gaps(header: bytes) -> tuple[int, tuple[int, ...]]:
    """Return (bytes of a record, the bytes in it that belong to no field), from the header of an array."""
    record = np.lib.format.descr_to_dtype(ast.literal_eval(header.decode("latin1"))["descr"])
    if record.fields is None:
        return record.itemsize, ()
    used = {at for kind, offset, *_ in record.fields.values() for at in range(offset, offset + kind.itemsize)}
    return record.itemsize, tuple(at for at in range(record.itemsize) if at not in used)


def _zip(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name in sorted(entries):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.create_system = UNIX
            file.writestr(entry, entries[name])
    return buffer.getvalue()


Numbers = np.ndarray[Any, Any]


def predict(model: Any, schema: Schema, features: pd.DataFrame) -> Numbers:
    """Return numbers (rows,), or probabilities (rows, classes) in the schema's order of classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if schema.problem is ProblemKind.REGRESSION:
            return np.asarray(model.predict(features), dtype=float)
        known = list(model.classes_)
        found = model.predict_proba(features)
    probabilities = np.zeros((len(features), len(schema.classes)))
    for position, name in enumerate(schema.classes):
        if name in known:
            probabilities[:, position] = found[:, known.index(name)]
    return np.nan_to_num(probabilities)


def write_predictions(predictions: Numbers) -> bytes:
    """Write predictions as plain numbers, row by row: reading them runs no code."""
    return np.ascontiguousarray(predictions, dtype="<f8").tobytes()


def read_predictions(data: bytes, schema: Schema, rows: int) -> Numbers:
    """Return the inverse of `write_predictions`.

    Raises:
        ModelFileRefused: these are not the predictions for so many rows, or not finite.
    """
    shape = (rows, len(schema.classes)) if schema.classes else (rows,)
    if len(data) != 8 * rows * max(1, len(schema.classes)):
        raise ModelFileRefused(f"the model gave {len(data)} bytes of predictions for {rows} rows; it is not judged")
    predictions = np.frombuffer(data, dtype="<f8").reshape(shape)
    if not np.isfinite(predictions).all():
        raise ModelFileRefused("the model predicts what is no number; it is not judged")
    return predictions

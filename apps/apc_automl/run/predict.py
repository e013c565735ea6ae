"""`apc automl predict` and `verify`: use the files of a model, and check that the log promised them."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

from apc_automl.data.table_schema import Schema
from apc_automl.errors import ModelFileRefused, TableInvalid
from apc_automl.loading import find_record
from apc_automl.model.frames import Request
from apc_automl.model.model_reader import ModelReader
from apc_automl.report.run_log import read_run
from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable, LogDiffers
from apc_console.output.files import write_bytes

JsonObject = dict[str, Any]


def read_model_folder(folder: Path, name: str = "model") -> tuple[JsonObject, bytes]:
    """Return the record and the bytes of the model in a folder of `apc automl run`.

    Raises:
        InputUnusable: no model is there, or its bytes are not those that the record names.
    """
    path = find_record(folder, name)
    if path is None:
        raise InputUnusable(f"--model {folder}: there is no model.json; name the folder that `apc automl run` wrote")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        file, promised = path.with_suffix(".skops"), record["model"]["hash"]
        data = file.read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputUnusable(f"{path} is no record of a model: {error}") from error
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != promised:
        raise InputUnusable(f"{file} is not the model that {path.name} names ({promised}); write both again")
    return record, data


def predict_table(folder: Path, data: Path, out: Path) -> tuple[int, list[str]]:
    """Write the table with its predictions as CSV; return the number of rows, and what differs from training.

    The model is read in a confined process. A prediction is a class with a column of probability for each, or a number.

    Raises:
        InputUnusable: the folder has no model, or the table lacks columns of it.
    """
    record, model = read_model_folder(folder)
    if record.get("schema") is None:
        raise InputUnusable(f"the record in {folder} has no columns; run `apc automl report` again")
    schema = Schema.model_validate(record["schema"])
    reader = ModelReader()
    try:
        return _predict(schema, model, reader, data, out)
    except (TableInvalid, ModelFileRefused) as error:
        raise InputUnusable(str(error)) from error
    finally:
        reader.close()


def _predict(schema: Schema, model: bytes, reader: ModelReader, data: Path, out: Path) -> tuple[int, list[str]]:
    from apc_automl.data.new_rows import differences, encode_features, with_predictions
    from apc_automl.data.source import read_source
    from apc_automl.training.predicting import read_predictions

    source = read_source(data)
    rows = encode_features(source.frame, schema)
    answer = reader.predict(Request(model, schema.model_dump_json().encode(), rows, again=False))
    predictions = read_predictions(answer[0], schema, len(source.frame))
    write_bytes(out, with_predictions(source.frame, schema, predictions))
    return len(source.frame), [source.words, *differences(source.frame, schema)]


async def verify_model(folder: Path) -> JsonObject:
    """Check that the log holds the packet that promises these bytes; of the model trained on every row too.

    Raises:
        InputUnusable: the folder has no model.
        LogDiffers: the log knows no such packet, or it promises other bytes.
    """
    verified = await _verify(await asyncio.to_thread(read_model_folder, folder))
    if find_record(folder, "all_rows") is None:
        return verified
    return verified | {"all_rows": await _verify(await asyncio.to_thread(read_model_folder, folder, "all_rows"))}


async def _verify(model: tuple[JsonObject, bytes]) -> JsonObject:
    record, _ = model
    promised, place = record["model"]["hash"], record["log"]
    async with open_log() as pool:
        run = await read_run(pool, record["run_id"])
    found = next((one for one in run.packets if str(one.packet_id) == place["packet_id"]), None)
    if found is None:
        raise LogDiffers(f"the log holds no packet {place['packet_id']} of run {record['run_id']}")
    if promised not in (found.payload.get("artifact_hash"), *found.evidence):
        raise LogDiffers(f"packet {place['packet_id']} of the log promises other bytes than {promised}")
    return {
        "is_verified": True,
        "model": promised,
        "status": record["status"],
        "packet_id": place["packet_id"],
        "shard": found.shard,
        "seq": found.seq,
    }

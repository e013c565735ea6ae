"""`apc automl predict` and `verify`: use the files of a model, and check that the log promised them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from apc_automl.data.table_schema import NOTHING_TOLD, Schema, TableOptions
from apc_automl.errors import ModelFileRefused, TableInvalid
from apc_automl.loading import find_record
from apc_automl.model.frames import Request
from apc_automl.model.model_reader import ModelReader
from apc_automl.report.run_log import LoggedPacket, RunLog, read_run
from apc_automl.run.written_model import OtherBytes, Record, WrittenModel
from apc_cli.for_applications import LogDiffers, open_log, write_bytes
from apc_contracts.errors import InputUnusable

JsonObject = dict[str, Any]


def predict_table(folder: Path, data: Path, out: Path, options: TableOptions = NOTHING_TOLD) -> tuple[int, list[str]]:
    """Write the table with its predictions as CSV; return the number of rows, and what differs from training.

    New rows are read as the model's record says that its table was written; options tell what is other there.
    The model is read in a confined process. A prediction is a class with a column of probability for each, or a number.

    Raises:
        InputUnusable: the folder has no model, or the table lacks columns of it.
    """
    written = WrittenModel.read(folder)
    if written.record.columns is None:
        raise InputUnusable(f"the record in {folder} has no columns; `apc automl report` writes it again")
    reader = ModelReader()
    try:
        schema = written.record.columns
        options = options if schema.header else replace(options, header=False)
        return _predict(schema, written.data, reader, (data, options), out)
    except (TableInvalid, ModelFileRefused) as error:
        raise InputUnusable(str(error)) from error
    finally:
        reader.close()


def _predict(
    schema: Schema, model: bytes, reader: ModelReader, rows_in: tuple[Path, TableOptions], out: Path
) -> tuple[int, list[str]]:
    from apc_automl.data.new_rows import differences, encode_features, with_predictions
    from apc_automl.data.source import read_source
    from apc_automl.training.predicting import read_predictions

    data, options = rows_in
    source = read_source(data, options)
    try:
        rows = encode_features(source.frame, schema, options.decimal)
    except ValueError as error:
        raise TableInvalid(f"the columns in model.json do not fit {data}: {error}") from error
    answer = reader.predict(Request(model, schema.model_dump_json().encode(), rows, again=False))
    predictions = read_predictions(answer[0], schema, len(source.frame))
    write_bytes(out, with_predictions(source.frame, schema, predictions))
    return len(source.frame), [source.words, *source.mended, *differences(source.frame, schema)]


async def verify_model(folder: Path) -> JsonObject:
    """Check that the log holds the packet that promises these bytes; of the model trained on every row too.

    Raises:
        InputUnusable: the folder has no model.
        LogDiffers: the file is not the one of its record, the log knows no such packet, or it promises other bytes.
    """
    verified = await _verify(folder, "model")
    if find_record(folder, "all_rows") is None:
        return verified
    return verified | {"all_rows": await _verify(folder, "all_rows")}


async def _verify(folder: Path, name: str) -> JsonObject:
    try:
        record = (await asyncio.to_thread(WrittenModel.read, folder, name)).record
    except OtherBytes as error:
        raise LogDiffers(str(error)) from error
    async with open_log() as pool:
        run = await read_run(pool, record.run_id)
    packet = checked_promise(record, run)
    return {
        "is_verified": True,
        "model": record.model.hash,
        "status": record.status,
        "packet_id": record.log.packet_id,
        "shard": packet.shard,
        "seq": packet.seq,
    }


def checked_promise(record: Record, run: RunLog) -> LoggedPacket:
    """Return the packet that promises a model, after its record was compared with the log: also columns and classes.

    Raises:
        LogDiffers: the log knows no such packet, or promises other bytes, columns or classes.
    """
    if not run.packets:
        raise LogDiffers(
            f"the log holds nothing of run {record.run_id}: change to the folder where `apc automl run` ran, "
            "or set APC_DATA_DIR to its .apc, or APC_DATABASE_URL"
        )
    packet = next((one for one in run.packets if str(one.packet_id) == record.log.packet_id), None)
    if packet is None:
        raise LogDiffers(f"the log holds no packet {record.log.packet_id} of run {record.run_id}")
    if record.model.hash not in (packet.payload.get("artifact_hash"), *packet.evidence):
        raise LogDiffers(f"packet {packet.packet_id} of the log promises other bytes than {record.model.hash}")
    if record.schema_hash is not None and record.schema_hash != run.brief.get("schema"):
        raise LogDiffers(
            f"the columns or classes in the record are not those of run {record.run_id}; "
            f"`apc automl report --run-id {record.run_id}` writes them again"
        )
    return packet

"""`apc automl predict` and `verify`: use the files of a model, and check that the log promised them."""

import asyncio
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from apc_automl.data.table_schema import NOTHING_TOLD, Schema, TableOptions
from apc_automl.errors import ModelFileRefused, TableInvalid
from apc_automl.loading import find_record
from apc_automl.model.model_reader import ModelReader, Request
from apc_automl.report.run_log import LoggedPacket, RunLog, read_run
from apc_cli.for_applications import LogDiffers, open_log, write_bytes
from apc_contracts.contract_model import Id
from apc_contracts.errors import InputUnusable

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so is a formula to a spreadsheet."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class OtherBytes(InputUnusable):
    """A model file that is not the one that its record names."""


class _File(BaseModel):
    hash: Sha256


class _InLog(BaseModel):
    packet_id: str


class Record(BaseModel):
    """What `apc automl predict` and `verify` need of a record."""

    model_config = ConfigDict(frozen=True)
    run_id: Id
    status: str
    model: _File
    log: _InLog
    columns: Schema | None = Field(default=None, alias="schema")

    @property
    def schema_hash(self) -> str | None:
        """The hash of the schema as the run stored it: with the settings that were known then."""
        if self.columns is None:
            return None
        return _hash_of(self.columns.model_dump_json(exclude_unset=True).encode())


@dataclass(frozen=True)
class WrittenModel:
    """A record, and the bytes that it names."""

    record: Record
    data: bytes

    @classmethod
    def read(cls, folder: Path, name: str = "model") -> Self:
        """Read the model in a folder of `apc automl run`.

        Raises:
            InputUnusable: no model is there, or its record cannot be read.
            OtherBytes: the bytes are not those that the record names.
        """
        path = find_record(folder, name)
        if path is None:
            raise InputUnusable(
                f"--model {folder}: there is no model.json; name the folder that `apc automl run` wrote"
            )
        file = path.with_suffix(".skops")
        try:
            record, data = Record.model_validate_json(path.read_bytes()), file.read_bytes()
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            raise InputUnusable(
                f"{path} is no record of a model ({place}: {first['msg']}); `apc automl report` writes it again"
            ) from error
        except OSError as error:
            raise InputUnusable(f"{error.filename}: {error.strerror}; `apc automl report` writes it again") from error
        if _hash_of(data) != record.model.hash:
            raise OtherBytes(
                f"{file} is not the model that {path.name} names ({record.model.hash}); "
                f"`apc automl report --run-id {record.run_id}` writes both again"
            )
        return cls(record, data)


def _hash_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


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
    from apc_automl.data.columns import differences, encode_features
    from apc_automl.data.source import read_source
    from apc_automl.model.model_file import read_predictions

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


def with_predictions(frame: "pd.DataFrame", schema: Schema, predictions: "np.ndarray[Any, Any]") -> bytes:
    """Return the table as CSV with the column `predicted TARGET`, and for classes a probability each.

    A text that a spreadsheet would run as a formula gets an apostrophe before it.
    """
    import numpy as np
    import pandas as pd

    name = f"predicted {schema.target}"
    if schema.classes:
        classes = np.array(schema.classes, dtype=object)[predictions.argmax(axis=1)]
        shares = {f"probability of {one}": predictions[:, place] for place, one in enumerate(schema.classes)}
        whole = frame.assign(**{name: classes}, **shares)
    else:
        whole = frame.assign(**{name: predictions})
    texts = [one for one in whole.columns if not pd.api.types.is_numeric_dtype(whole[one])]
    whole = whole.assign(**{one: whole[one].map(_harmless) for one in texts}).rename(columns=_harmless)
    return whole.to_csv(index=False, lineterminator="\n").encode()


def _harmless(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell

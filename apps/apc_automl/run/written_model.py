"""A model and its record as they lie in a folder: anybody may have changed them since the run wrote them."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from apc_automl.data.table_schema import Schema
from apc_automl.loading import find_record
from apc_contracts.contract_model import Id
from apc_contracts.errors import InputUnusable

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

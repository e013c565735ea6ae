"""Somebody changes the record beside a model: its bytes stay what the log promised, and say something else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from apc_automl.data.table_schema import Column, ColumnKind, ProblemKind, Schema
from apc_automl.loading import load_model
from apc_automl.report.run_log import LoggedPacket, RunLog
from apc_automl.run.predict import Record, WrittenModel, checked_promise
from apc_automl.swarm.briefs import SENTINEL
from apc_automl.training.material import Blob
from apc_cli.errors import InputUnusable, LogDiffers

SCHEMA = Schema(
    target="y",
    problem=ProblemKind.CLASSIFICATION,
    label_type="text",
    classes=("sick", "well"),
    columns=(Column(name="a", kind=ColumnKind.NUMERIC),),
)
MODEL = Blob.of(b"model")
PROMISE = UUID(int=2)

Document = dict[str, Any]


def document() -> Document:
    return {
        "run_id": "run-1",
        "status": "promoted",
        "log": {"packet_id": str(PROMISE), "shard": 0, "seq": 9},
        "model": {"hash": MODEL.hash, "file": "model.skops"},
        "schema": json.loads(SCHEMA.model_dump_json()),
    }


def run_log() -> RunLog:
    """Return a log whose brief names the schema, and which promises the model."""
    brief = {
        "ir_header": {"swarm_id": SENTINEL},
        "objects": [{"id": "schema", "ref": Blob.of(SCHEMA.model_dump_json().encode()).hash}],
    }
    packets = tuple(
        LoggedPacket(one, kind, "RESEARCH", 1, 0, "librarian", "", "accepted", None, {"payload": payload})
        for one, kind, payload in (
            (UUID(int=1), "TASK_IR", brief),
            (PROMISE, "ARTIFACT", {"artifact_hash": MODEL.hash}),
        )
    )
    return RunLog("run-1", ("run-1",), packets, (), (), {})


def other_classes(record: Document) -> None:
    record["schema"]["classes"] = ["well", "sick"]


def other_column(record: Document) -> None:
    record["schema"]["columns"][0]["name"] = "b"


def other_target(record: Document) -> None:
    record["schema"]["target"] = "z"


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("change", [other_classes, other_column, other_target])
def test_a_record_with_other_columns_or_classes_is_not_verified(
    change: Callable[[Document], None], is_guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, changed = document(), document()
    change(changed)
    assert checked_promise(Record.model_validate(record), run_log()).packet_id == PROMISE
    if is_guarded:
        with pytest.raises(LogDiffers, match="columns or classes"):
            checked_promise(Record.model_validate(changed), run_log())
    else:
        monkeypatch.setattr(Record, "schema_hash", None)
        assert checked_promise(Record.model_validate(changed), run_log()).packet_id == PROMISE


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("log"),
        lambda record: record.update(log="x"),
        lambda record: record.update(run_id=5),
        lambda record: record.update(schema="hello"),
        lambda record: record["schema"].pop("columns"),
        lambda record: record["model"].update(hash=5),
        lambda record: record["model"].update(hash="sha256:" + "0" * 64),
    ],
    ids=["no place", "place", "run", "schema", "no columns", "hash", "other hash"],
)
def test_a_broken_record_is_a_refusal_with_the_remedy(change: Callable[[Document], object], tmp_path: Path) -> None:
    (tmp_path / "model.skops").write_bytes(MODEL.data)
    record = document()
    (tmp_path / "model.json").write_text(json.dumps(record))
    assert WrittenModel.read(tmp_path).data == MODEL.data, "unchanged it is read"
    change(record)
    (tmp_path / "model.json").write_text(json.dumps(record))
    with pytest.raises(InputUnusable, match=r"`apc automl report.*` writes"):
        WrittenModel.read(tmp_path)


@pytest.mark.parametrize("data", [b"[1, 2]", b'{"model":', b'{"a":' * 100_000, b"\xff\xfe{}"], ids=range(4))
def test_no_bytes_in_the_place_of_a_record_end_in_a_traceback(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.skops").write_bytes(MODEL.data)
    (tmp_path / "model.json").write_text(json.dumps(document()))
    assert WrittenModel.read(tmp_path).data == MODEL.data, "unchanged it is read"
    (tmp_path / "model.json").write_bytes(data)
    with pytest.raises(InputUnusable, match="is no record of a model"):
        WrittenModel.read(tmp_path)
    with pytest.raises(ValueError, match="is no record of a model"):
        load_model(tmp_path)

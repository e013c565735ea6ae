"""Attacks with a table file: what unpacks without end, and names that lead elsewhere."""

import gzip
import io
import zipfile
from pathlib import Path

import pytest

from apc_automl.data import source
from apc_automl.data.source import read_source
from apc_automl.errors import TableInvalid

BOUND = 10_000
BOMB = b"a,b\n" + b"1,2\n" * BOUND


def packed(kind: str) -> bytes:
    if kind == "gz":
        return gzip.compress(BOMB)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../outside.csv", BOMB)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["gz", "zip"])
def test_a_table_that_unpacks_beyond_the_bound_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "inner" / f"table.{kind}"
    path.parent.mkdir()
    path.write_bytes(packed(kind))
    assert len(path.read_bytes()) < BOUND
    assert len(read_source(path).frame) == BOUND, "without the bound it is read"
    monkeypatch.setattr(source, "LARGEST_TABLE", BOUND)
    with pytest.raises(TableInvalid, match="MiB of data"):
        read_source(path)
    assert [one.name for one in tmp_path.iterdir()] == ["inner"], "nothing is unpacked to a file"

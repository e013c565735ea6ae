"""Attacks with a table file: what unpacks without end, and names that lead elsewhere."""

import gzip
import io
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from apc_automl.data import source, typed_files
from apc_automl.data.source import read_source
from apc_automl.data.table_schema import TableOptions
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


@pytest.mark.parametrize("told", [None, " "])
def test_many_small_cells_between_spaces_are_refused_before_they_are_cut(
    told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.txt"
    path.write_bytes((b"1 " * 199 + b"1\n") * 500)
    assert len(read_source(path).frame) == 500, "without the bound it is read"
    monkeypatch.setattr(source, "MOST_MEMORY", 2**20)
    with pytest.raises(TableInvalid, match=r"more cells than can be read in 1 MiB of memory"):
        read_source(path, TableOptions(separator=told))


@pytest.mark.parametrize("kind", ["gz", "zip", "csv"])
@pytest.mark.parametrize("line", [b"1\n", b"\n", b",,,\n", b"ab;cd\n"])
@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_table_of_many_small_cells_is_refused_before_it_is_read(
    is_guarded: bool, line: bytes, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """130 KB that unpack to 130 MB took three gigabytes: a cell of one byte becomes an object."""
    monkeypatch.setattr(source, "MOST_MEMORY", 2**20 if is_guarded else 2**40)
    monkeypatch.setattr(source, "_PART_BYTES", 2**14)
    unpacked = 0

    class Counting(Counter[str]):
        def update(self, *given: Any, **named: int) -> None:
            nonlocal unpacked
            unpacked += 1
            super().update(*given, **named)

    monkeypatch.setattr(source, "Counter", Counting)
    body = b"a,b\n" + line * (2**18 // len(line))
    path = tmp_path / f"table.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("table.csv", body)
    else:
        path.write_bytes(gzip.compress(body) if kind == "gz" else body)
    if is_guarded:
        with pytest.raises(TableInvalid, match=r"more cells than can be read in 1 MiB of memory"):
            read_source(path)
        assert unpacked < 17, "the rest is not even unpacked"
    else:
        with suppress(TableInvalid):  # a table of empty lines has no rows
            read_source(path)
        assert unpacked >= 16, "all of it is"


def test_what_is_counted_is_at_least_what_reading_takes(tmp_path: Path) -> None:
    """In another process: its largest memory, less what Python and pandas take."""
    read = (
        "import resource, sys; from pathlib import Path; from apc_automl.data import source;"
        "most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024; before = most();"
        "source.read_source(Path(sys.argv[1])); print(most() - before)"
    )
    for line in (b"1\n", b"ab\n", b"1,,x\n"):
        path = tmp_path / "table.csv"
        path.write_bytes(b"a,b,c\n" + line * 2**18)
        cells = 2**18 * sum(map(line.count, (b",", b"\n")))
        counted = source._COPIES * path.stat().st_size + source._BYTES_OF_A_CELL * cells
        taken = int(subprocess.run([sys.executable, "-c", read, path], check=True, capture_output=True).stdout)
        assert taken <= counted + 2**25, line


@pytest.mark.parametrize("is_guarded", [False, True])
def test_an_archive_that_tells_its_size_is_refused_unopened(
    is_guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte that unpacks to more than a gigabyte took seconds and two gigabytes of memory."""

    def opened(*_: object) -> None:
        raise LookupError("opened")

    path = tmp_path / "table.zip"
    path.write_bytes(packed("zip"))
    monkeypatch.setattr(zipfile.ZipFile, "open", opened)
    if is_guarded:
        monkeypatch.setattr(source, "LARGEST_TABLE", BOUND)
    with pytest.raises(TableInvalid if is_guarded else LookupError, match="MiB of data" if is_guarded else "opened"):
        read_source(path)


def archive(field: int, value: int) -> bytes:
    """Return a zip of one table, with a byte of both of its headers changed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as written:
        written.writestr("table.csv", BOMB)
    changed = bytearray(buffer.getvalue())
    for place in (field, changed.index(b"PK\x01\x02") + field + 2):
        changed[place] = value
    return bytes(changed)


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize(
    ("field", "value", "said"), [(6, 1, "is encrypted"), (8, 99, "compression method")], ids=["encrypted", "method"]
)
def test_an_archive_that_cannot_be_opened_ends_nothing(
    field: int, value: int, said: str, is_guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_guarded:
        monkeypatch.setattr(source, "_BROKEN", (OSError,))
    path = tmp_path / "table.zip"
    path.write_bytes(archive(field, value))
    with pytest.raises(TableInvalid if is_guarded else RuntimeError, match=said):
        read_source(path)


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_table_of_too_many_columns_is_refused_at_once(
    is_guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each column takes a millisecond of everybody who reads the table: 200,000 took minutes."""
    width = source.MOST_COLUMNS + 1
    if not is_guarded:
        monkeypatch.setattr(source, "MOST_COLUMNS", width)
    path = tmp_path / "wide.csv"
    lines = [[f"column {place}" for place in range(width)], ["1"] * width]
    path.write_text("\n".join(map(",".join, lines)))
    if is_guarded:
        with pytest.raises(TableInvalid, match="5,001 columns, 5,000 are possible"):
            read_source(path)
    else:
        assert len(read_source(path).frame.columns) == width


@pytest.mark.parametrize("is_guarded", [False, True])
def test_short_lines_below_a_wide_header_are_refused_before_they_are_filled_up(
    is_guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of lines with one cell each became a table of 20 GB, an empty cell for each column of the header."""
    filled: list[int] = []

    def fill(*_: object, names: list[int], **__: object) -> None:
        filled.append(len(names))
        raise ZeroDivisionError

    monkeypatch.setattr("pandas.read_csv", fill)
    if is_guarded:
        monkeypatch.setattr(source, "_BYTES_OF_AN_EMPTY_CELL", 2**20)
    path = tmp_path / "table.csv"
    path.write_text(",".join(f"c{place}" for place in range(500)) + "\n" + "1\n" * 1_000)
    with pytest.raises(TableInvalid if is_guarded else ZeroDivisionError):
        read_source(path)
    assert filled == ([] if is_guarded else [500])


@pytest.mark.parametrize("is_guarded", [False, True])
def test_no_old_pyarrow_reads_what_a_stranger_sends(
    is_guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It unpickles what a file names as its type (CVE-2023-47248)."""

    def reached(name: str) -> None:
        raise LookupError(name)

    monkeypatch.setattr(typed_files, "version", lambda _: "14.0.0")
    monkeypatch.setattr(typed_files, "import_module", reached)
    if not is_guarded:
        monkeypatch.setattr(typed_files, "OLDEST_PYARROW", 14)
    path = tmp_path / "table.parquet"
    path.write_bytes(b"PAR1" + b"\0" * 100 + b"PAR1")
    with pytest.raises(TableInvalid if is_guarded else LookupError, match="pyarrow"):
        read_source(path)


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_parquet_file_is_read_until_its_bound(is_guarded: bool) -> None:
    """A kilobyte of codes that all stand for the same megabyte becomes a terabyte of texts."""
    opened: list[int] = []

    def batches() -> Iterator[int]:
        for size in [BOUND // 2] * 1_000:
            opened.append(size)
            yield size

    bound = BOUND if is_guarded else BOUND * 1_000
    if is_guarded:
        with pytest.raises(TableInvalid, match="MiB of data"):
            typed_files.bounded(batches(), int, bound, Path("table.parquet"))
        assert len(opened) == 3, "nothing behind the bound is read"
    else:
        assert len(typed_files.bounded(batches(), int, bound, Path("table.parquet"))) == 1_000

"""Attacks with an Excel workbook: entities that grow, cells without end, a size that is not so."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import openpyxl
import openpyxl.worksheet._reader
import pytest

from apc_automl.data import typed_files
from apc_automl.data.source import read_source
from apc_automl.errors import TableInvalid

BOUND = 10_000
ENTITY = b'<!DOCTYPE a [<!ENTITY laugh "7">]>'


def workbook(path: Path, rows: int = 3) -> Path:
    book = openpyxl.Workbook()
    for row in [("a", "b"), *((1, 2) for _ in range(rows))]:
        book.active.append(row)
    book.save(path)
    return path


def changed(path: Path, before: bytes, after: bytes) -> None:
    """Change the sheet of a workbook."""
    source = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as written:
        for name in source.namelist():
            data = source.read(name)
            if name == "xl/worksheets/sheet1.xml":
                assert before in data
                data = data.replace(before, after, 1)
            written.writestr(name, data)


@pytest.mark.parametrize("is_guarded", [False, True])
def test_no_entity_of_a_workbook_is_replaced(is_guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entity may stand for a file, or for a million others."""
    path = workbook(tmp_path / "table.xlsx")
    changed(path, b"<worksheet", ENTITY + b"<worksheet")
    changed(path, b"<v>1</v>", b"<v>&laugh;</v>")
    if is_guarded:
        with pytest.raises(TableInvalid, match="cannot be read as an Excel workbook"):
            read_source(path)
    else:
        monkeypatch.setattr(openpyxl.worksheet._reader, "iterparse", ElementTree.iterparse)
        assert read_source(path).frame["a"].iloc[0] == 7


@pytest.mark.parametrize("is_guarded", [False, True])
def test_no_workbook_is_read_without_the_library_that_refuses_entities(
    is_guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = workbook(tmp_path / "table.xlsx")
    monkeypatch.setattr(openpyxl.xml, "DEFUSEDXML", not is_guarded)
    if is_guarded:
        with pytest.raises(TableInvalid, match="pip install defusedxml"):
            read_source(path)
    else:
        assert len(read_source(path).frame) == 3


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_workbook_that_unpacks_beyond_the_bound_is_refused(
    is_guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = workbook(tmp_path / "table.xlsx", rows=5_000)
    if is_guarded:
        monkeypatch.setattr(typed_files, "MOST_XML", 2 * path.stat().st_size)
        with pytest.raises(TableInvalid, match="MiB of data"):
            read_source(path)
    else:
        assert len(read_source(path).frame) == 5_000


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_workbook_takes_no_more_memory_than_its_bound(
    is_guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty cells of one row are packed a thousandfold, and take eighty times their bytes until the row ends."""
    path = workbook(tmp_path / "table.xlsx")
    changed(path, b"</row>", b"<c/>" * 230_000 + b"</row>")
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(typed_files, "SMALL_XML", 500_000 if is_guarded else typed_files.MOST_XML)
    monkeypatch.setattr(typed_files, "MOST_MEMORY", 2**26)
    if is_guarded:
        with pytest.raises(TableInvalid, match="takes more than 64 MiB of memory"):
            read_source(path)
    else:
        assert len(read_source(path).frame) == 3, "it is read, whatever it takes"


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_sheet_is_read_until_its_bound(is_guarded: bool) -> None:
    """A kilobyte of cells can stand for the same megabyte each, and row 1,048,576 for all rows before it."""
    opened: list[int] = []

    def rows() -> Iterator[tuple[str | None, ...]]:
        for number in range(1_000):
            opened.append(number)
            yield ("x" * (BOUND // 2),) if number % 2 else (None,) * (BOUND // 16)

    bound = BOUND if is_guarded else BOUND * 1_000
    if is_guarded:
        with pytest.raises(TableInvalid, match="MiB of data"):
            typed_files.bounded_rows(rows(), bound, Path("table.xlsx"))
        assert len(opened) <= 3, "nothing behind the bound is read"
    else:
        assert len(typed_files.bounded_rows(rows(), bound, Path("table.xlsx"))) == 500, "empty rows are none"


@pytest.mark.parametrize("is_guarded", [False, True])
def test_what_a_sheet_says_of_its_size_hides_nothing(
    is_guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks at the table in Excel sees two columns; a reader that believes the sheet sees one."""
    path = workbook(tmp_path / "table.xlsx")
    changed(path, b'<dimension ref="A1:B4"', b'<dimension ref="A1:A4"')
    if not is_guarded:
        sheets = openpyxl.worksheet._read_only.ReadOnlyWorksheet
        monkeypatch.setattr(sheets, "reset_dimensions", lambda _: None)
    assert list(read_source(path).frame.columns) == (["a", "b"] if is_guarded else ["a"])

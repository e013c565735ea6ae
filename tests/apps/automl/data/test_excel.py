"""Excel workbooks as people have them: several sheets, dates, holes, errors, whole numbers beside texts."""

import io
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from apc_automl.data import typed_files
from apc_automl.data.source import read_source
from apc_automl.data.table import read_table
from apc_automl.data.table_schema import ColumnKind
from apc_automl.errors import TableInvalid

HEAD = ("size", "when", "code", "y")


def rows(count: int) -> list[tuple[Any, ...]]:
    return [
        (n * 37 % 101 / 7 if n % 9 else None, datetime(2024, 1 + n % 12, 1 + n % 28), n if n % 2 else f"K{n}", n % 2)
        for n in range(count)
    ]


def workbook(path: Path, sheets: dict[str, list[tuple[Any, ...]]]) -> Path:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, cells in sheets.items():
        sheet = book.create_sheet(name)
        for row in cells:
            sheet.append(row)
    book.save(path)
    return path


def test_the_first_sheet_with_cells_is_read_and_said(tmp_path: Path) -> None:
    path = workbook(tmp_path / "table.xlsx", {"empty": [], "Sales": [HEAD, *rows(80)], "other": [("a",), (1,)]})
    source = read_source(path)
    assert source.words == "read 80 rows, 4 columns: Excel, sheet 'Sales', the first with cells of 3 sheets"
    assert source.frame["size"].isna().sum() == 9
    assert source.frame["code"].iloc[:2].tolist() == ["K0", "1"], "numbers beside texts are texts, as in a CSV"
    kinds = {column.name: column.kind for column in read_table(path, "y").schema.columns}
    assert kinds["size"] is ColumnKind.NUMERIC
    assert kinds["when"] is ColumnKind.DATE


def test_a_large_workbook_is_read_alike_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = workbook(tmp_path / "table.xlsx", {"one": [HEAD, *rows(200)]})
    here = read_source(path)
    monkeypatch.setattr(typed_files, "SMALL_XML", 0)
    monkeypatch.setattr(typed_files, "MOST_MEMORY", 2**26)
    there = read_source(path)
    assert there.words == here.words and there.frame.equals(here.frame)
    broken = workbook(tmp_path / "broken.xlsx", {"one": [("a", "a"), (1, 2)]})
    with pytest.raises(TableInvalid, match="two columns of one name, 'a'; rename one"):
        read_source(broken)


def test_errors_of_formulas_are_missing_and_empty_rows_are_none(tmp_path: Path) -> None:
    cells = [("a", "b"), (1, "x"), (None, None), ("#DIV/0!", " "), (3, "y")]
    frame = read_source(workbook(tmp_path / "table.xlsx", {"one": cells})).frame
    assert frame["a"].tolist()[::2] == [1, 3] and frame["a"].isna().tolist() == [False, True, False]
    assert frame["b"].isna().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("sheets", "said"),
    [
        ({"one": []}, "is empty"),
        ({"one": [("a", "b")]}, "has a header line but no rows"),
        ({"one": [("a", None, "c"), (1, 2, 3)]}, "a column has no name there"),
        ({"one": [("a",), (1, 2)]}, "a column has no name there"),
        ({"one": [("a", "a "), (1, 2)]}, "two columns of one name, 'a'; rename one"),
    ],
)
def test_it_is_refused_with_the_remedy(sheets: dict[str, list[tuple[Any, ...]]], said: str, tmp_path: Path) -> None:
    with pytest.raises(TableInvalid, match=said):
        read_source(workbook(tmp_path / "table.xlsx", sheets))


def test_a_broken_workbook_is_one_line(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("xl/workbook.xml", "<broken")
    path = tmp_path / "table.xlsx"
    path.write_bytes(buffer.getvalue())
    with pytest.raises(TableInvalid, match="cannot be read as an Excel workbook") as refused:
        read_source(path)
    assert "\n" not in str(refused.value)

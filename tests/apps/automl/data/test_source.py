"""What a new user's table prints before anything starts: how it was read, what became of its columns, or why not."""

import gzip
import os
import random
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from apc_automl.data.source import read_source
from apc_automl.data.table import read_table
from apc_automl.data.table_schema import Schema, TableOptions
from apc_automl.errors import TableInvalid
from apc_automl.training.measuring import prepare


def plain(rows: int = 80, header: str = "size,colour,y") -> str:
    lines = [f"{number * 37 % 101 / 7:.3f},{'red' if number % 3 else 'blue'},{number % 2}" for number in range(rows)]
    return "\n".join([header, *lines]) + "\n"


def german() -> str:
    return plain().replace(",", ";").replace(".", ",")


def dated() -> str:
    words, draw = ("refund", "late", "thanks", "broken"), random.Random(1)
    lines = [
        f"{1 + n % 28:02d}.{1 + n % 12:02d}.2024;order {n}: {' '.join(draw.sample(words, 2))};{n % 2}"
        for n in range(80)
    ]
    return "\n".join(["when;remark;y", *lines]) + "\n"


def leaking() -> str:
    return "size,known,y\n" + "".join(f"{n * 37 % 101},{n % 2 * 5},{n % 2}\n" for n in range(80))


READ: dict[str, tuple[Callable[[], bytes], str]] = {
    "semicolon and decimal comma": (lambda: german().encode(), "read 80 rows, 3 columns: `;`, UTF-8, decimal comma"),
    "UTF-16": (lambda: plain().encode("utf-16"), "read 80 rows, 3 columns: `,`, UTF-16"),
    "Latin-1": (lambda: plain().replace("red", "größer").encode("latin-1"), "read 80 rows, 3 columns: `,`, Latin-1"),
    "byte order mark": (lambda: plain().encode("utf-8-sig"), "read 80 rows, 3 columns: `,`, UTF-8"),
    "gz": (lambda: gzip.compress(plain().encode()), "read 80 rows, 3 columns: `,`, UTF-8, gzip"),
    "thousands": (
        lambda: german().replace("\n1,", "\n1.234.567,").encode(),
        "read 80 rows, 3 columns: `;`, UTF-8, decimal comma",
    ),
    "duplicate column": (
        lambda: "\n".join(f"{line.split(',')[0].replace('size', 'twin')},{line}" for line in plain().split()).encode(),
        "column 'size' is left out: it equals column 'twin'",
    ),
    "target with spaces": (
        lambda: plain(header="size,colour, y ").encode(),
        "read 80 rows, 3 columns: `,`, UTF-8",
    ),
    "rare class": (
        lambda: (plain() + "1.5,red,7\n").encode(),
        "class 7 of 'y' is left out: it has 1 row, fewer than 8",
    ),
    "id column": (
        lambda: "\n".join(f"{n or 'id'},{line}" for n, line in enumerate(plain().split())).encode(),
        "column 'id' is left out: it numbers the rows",
    ),
    "dates": (lambda: dated().encode(), "column 'when' is a date, %d.%m.%Y: it becomes its parts"),
    "texts": (
        lambda: dated().encode(),
        "column 'remark' is text: its 4 most frequent words are counted",
    ),
    "leakage": (
        lambda: leaking().encode(),
        "warning: column 'known' predicts 'y' alone; leave it out if it is known only after 'y'",
    ),
}


@pytest.mark.parametrize("name", READ)
def test_it_is_read_and_said_in_a_line(name: str, tmp_path: Path) -> None:
    data, line = READ[name]
    path = tmp_path / "table.csv"
    path.write_bytes(data())
    prepared = prepare(str(path), "y", None, 7, 2, 3000)
    assert line in prepared.profile["notes"]


def test_a_sample_is_said(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(plain(1000))
    notes = prepare(str(path), "y", None, 7, 2, 400).profile["notes"]
    assert any(
        note.startswith("the search looks at 400 of 1,000 rows, a stratified sample: its time allows") for note in notes
    )


def measured(cell: str, usual: str = "{n}") -> bytes:
    """Return a table in which every seventh size is this cell."""
    cells = (cell if n % 7 == 3 else usual.format(n=n, day=1 + n % 28, month=1 + n % 12) for n in range(80))
    lines = [f"{one},{n * 37 % 11},{n % 2}" for n, one in enumerate(cells)]
    return "\n".join(["size,colour,y", *lines]).encode()


ODD: dict[str, tuple[bytes, str]] = {
    "infinite": (measured("-inf"), "column 'size': 11 numbers are infinite or huge and count as missing"),
    "huge": (measured("7e200"), "column 'size': 11 numbers are infinite or huge and count as missing"),
    "only infinite": (measured("inf", "inf"), "column 'size' is left out: its numbers are all infinite or huge"),
    "no real dates": (
        measured("31.02.2024", "{day:02d}.{month:02d}.2024"),
        "warning: column 'size' has dates, %d.%m.%Y, but 11 of its cells are none, such as '31.02.2024': "
        "it is read as text; mend those cells",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_cells_that_would_be_lost_are_said(name: str, tmp_path: Path) -> None:
    data, line = ODD[name]
    path = tmp_path / "table.csv"
    path.write_bytes(data)
    assert line in prepare(str(path), "y", None, 7, 2, 3000).profile["notes"]


REFUSED: dict[str, tuple[bytes, str]] = {
    "open quotation mark": (
        plain().replace("red", '"red', 1).encode(),
        "a quotation mark in row 2 is never closed; close or remove it",
    ),
    "line of more fields": (
        (plain() + "1,red,0,0\n").encode(),
        "line 82 has 4 fields, 3 are expected; put a text that holds `,` in quotation marks, or name another",
    ),
    "long cell": ((plain() + f"1,{'x' * 200_000},0\n").encode(), "a cell has more than 131,072 characters"),
    "NUL": ((plain() * 9 + "1,r\0d,0\n").encode(), "has a NUL character in line 730; is the file damaged?"),
    "JSON": (b'[{"size": 1, "y": 0}]', "is JSON; save it as CSV"),
    "web page": (b"<!DOCTYPE html>\n<html>no access</html>\n", "is a web page or XML; download the table itself"),
    "archive": (b"folder/a.csv".ljust(257, b"\0") + b"ustar\x0000", "is an archive of files (tar); unpack it"),
    "huge target": (
        ("size,colour,y\n" + "".join(f"{n * 37 % 101},{n % 3},{n}e150\n" for n in range(80))).encode(),
        "the target 'y' has numbers as large as 7.9e+151, whose squares no computer holds",
    ),
    "five rows": (plain(5).encode(), "has 5 usable rows; at least 40 are needed"),
    "two columns of one name": (plain(header="y,colour,y").encode(), "has two columns of one name, 'y'; rename one"),
    "picture": (b"\x89PNG\0\0\0\0" * 50, "is no text file; --data must name a CSV, Excel or parquet file"),
    "old workbook": (b"\xd0\xcf\x11\xe0" + b"\0" * 99, "of Excel 2003 or before; save it as .xlsx or CSV"),
    "broken gz": (gzip.compress(plain().encode())[:80], "cannot be read"),
    "other target": (plain(header="size,colour,z").encode(), "has no column 'y' to predict; its columns are: size"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_the_remedy(name: str, tmp_path: Path) -> None:
    data, line = REFUSED[name]
    path = tmp_path / "table.csv"
    path.write_bytes(data)
    with pytest.raises(TableInvalid) as refused:
        read_table(path, "y")
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_no_file_is_said_and_no_pipe_is_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    for path, words in ((tmp_path, "is a folder"), (pipe, "is a pipe"), (tmp_path / "none.csv", "there is no file")):
        with pytest.raises(TableInvalid, match=words):
            read_source(path)


def test_parquet_without_its_library_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("apc_automl.data.typed_files.version", absent)
    path = tmp_path / "table.parquet"
    path.write_bytes(b"PAR1" + b"\0" * 100 + b"PAR1")
    with pytest.raises(TableInvalid, match="pip install pyarrow"):
        read_source(path)


def test_a_zip_holds_one_table(tmp_path: Path) -> None:
    path = tmp_path / "table.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inner.csv", plain())
    assert read_source(path).words == "read 80 rows, 3 columns: `,`, UTF-8, zip"
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("other.csv", plain())
    with pytest.raises(TableInvalid, match="holds 2 files; unpack it"):
        read_source(path)


def test_a_table_without_a_header_line_gets_names(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("".join(f"{n},{n * 2 + 1},{n % 2 + 5}\n" for n in range(80)))
    source = read_source(path)
    assert list(source.frame.columns) == ["column_1", "column_2", "column_3"]
    assert "no header line" in source.words
    assert len(read_source(path, TableOptions(header=True)).frame) == 79


def test_what_is_detected_can_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a#b\n" + "".join(f"{n * 7 % 60}.125#{n % 2}\n" for n in range(60)), encoding="latin-1")
    told = TableOptions(separator="#", decimal=",", encoding="latin-1")
    assert read_source(path, told).frame["a"].iloc[3] == "21.125", "cells stay as they are written"
    assert read_table(path, "b", options=told).frame["a"].iloc[3] == 21125
    assert read_table(path, "b", options=replace(told, decimal=".")).frame["a"].iloc[3] == 21.125


def test_dates_and_texts_stay_as_they_are_and_models_take_them_to_pieces(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(dated())
    table = read_table(path, "y")
    assert table.frame["when"].iloc[:2].tolist() == ["01.01.2024", "02.02.2024"]
    schema = Schema.model_validate_json(prepare(str(path), "y", None, 7, 2, 3000).schema)
    assert schema.columns[1].words == ("broken", "late", "refund", "thanks"), "`order` is in every row"
    assert schema.feature_count == 6 + 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (TableOptions(separator="||"), "--separator '||' has 2 characters"),
        (TableOptions(encoding="undefined"), "is not undefined: .*; name another --encoding"),
        (TableOptions(encoding="punycode"), "is not punycode: .*; name another --encoding"),
    ],
)
def test_an_option_that_reads_no_table_is_refused(options: TableOptions, said: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a||b\n1||+2\n")
    with pytest.raises(TableInvalid, match=f"(?s){re.escape(said) if options.separator else said}"):
        read_source(path, options)


def sold(rows: int = 90) -> list[str]:
    return [f"shop {n % 5};{n * 37 % 101};{n % 9},5;{'ab'[n % 2]}" for n in range(rows)]


def test_the_header_of_a_second_part_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(plain() + plain())
    source = read_source(path)
    assert len(source.frame) == 160 and "size" not in set(source.frame["size"])
    assert source.mended == ("comments, rules, empty lines or the header again are left out, such as 'size'",)


def test_rules_and_lines_without_cells_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    rule = "---;---;---;---"
    lines = ["shop;sold;rate;y", rule, *sold(40), ";;;", *sold(40), "-+-+--", rule, "Average;1;2;", "Total;4;5;"]
    path.write_text("\n".join(lines) + "\n")
    source = read_source(path)
    assert source.frame["y"].tolist() == ["a", "b"] * 40
    path.write_text("a;b;y\n" + "-;+;-\n+;-;+\n" * 40)
    assert len(read_source(path).frame) == 80, "signs may be all that a table has"


@pytest.mark.parametrize("cell", ["'s-Hertogenbosch", '"5 inch', "'0815"])
def test_a_sign_that_opens_a_cell_and_never_closes_it_is_no_quotation_mark(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text("place\tsize\ty\n" + "".join(f"{cell}\t{n}\t{n % 2}\n" for n in range(80)))
    source = read_source(path)
    assert source.frame["place"].tolist() == [cell] * 80


def test_lines_may_end_as_on_old_computers(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(plain().replace("\n", "\r").encode())
    assert read_source(path).frame.shape == (80, 3)


def test_a_code_page_that_is_none_of_windows_has_to_be_named(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(plain().replace("red", "für").encode("cp850"))
    with pytest.raises(TableInvalid, match=r"is not Windows-1252: .*; name another --encoding"):
        read_source(path)
    assert read_source(path, TableOptions(encoding="cp850")).frame["colour"].iloc[1] == "für"


@pytest.mark.parametrize(
    ("cell", "is_read"),
    [(r'"say \"hi, you\" {n}"', 'say "hi, you" {n}'), (r'"C:\a\",{n}', "C:\\a\\"), ('"a ""b"" {n}"', 'a "b" {n}')],
)
def test_quotation_marks_in_a_cell_have_a_sign_before_them_or_are_doubled(
    tmp_path: Path, cell: str, is_read: str
) -> None:
    path = tmp_path / "table.csv"
    lines = [f"{cell.format(n=n)},{n % 2}" for n in range(80)]
    path.write_text("\n".join(["remark,size,y" if "C:" in cell else "remark,y", *lines]) + "\n")
    assert read_source(path).frame["remark"].iloc[7] == is_read.format(n=7)


def test_columns_of_one_name_are_told_apart_and_said(tmp_path: Path) -> None:
    lines = [f"{n % 5 or 'note'},{line},{n % 7 or 'note'}" for n, line in enumerate(plain().split())]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines))
    source = read_source(path)
    assert list(source.frame.columns) == ["note", "size", "colour", "y", "note.1"]
    assert source.frame.iloc[8, [0, 4]].tolist() == ["4", "2"]
    said = "warning: several columns are called 'note': the next is 'note.1', and new rows must have them in this order"
    assert source.mended == (said,)
    for target, options in (("note", TableOptions()), ("y", TableOptions(group="note"))):
        with pytest.raises(TableInvalid, match="two columns of one name, 'note'; rename one"):
            read_table(path, target, options=options)
    path.write_text("\n".join([f"note.1,{lines[0]}", *(f"1,{line}" for line in lines[1:])]))
    with pytest.raises(TableInvalid, match=r"two columns of one name, 'note\.1'"):
        read_source(path)


def test_spaces_are_between_fields_where_no_other_sign_is(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    lines = [f'"{n}" "{n % 7} of the shop" {n:4}  {n % 3}.5 NA' for n in range(1, 91)]
    path.write_text("\n".join(['"shop" "sold" "rate" "y"', *lines]) + "\n")
    source = read_source(path)
    assert source.words == "read 90 rows, 5 columns: space, UTF-8"
    assert source.frame.iloc[6].tolist() == ["7", "0 of the shop", "7", "1.5", "NA"]
    assert source.mended == ("the header has no name for the first column, which numbers the rows: it is called 'row'",)
    path.write_text("remark\n" + "".join(f"it came {'very ' * (n % 3)}late\n" for n in range(90)))
    assert read_source(path).frame.shape == (90, 1), "texts are one column"


def test_lines_above_and_behind_a_table_are_no_rows(tmp_path: Path) -> None:
    head = ["Report; of 2024", "# internal", "", "shop;sold;rate;y"]
    end = ["", "Total;4545;9,5;", "Made on 2024-01-05"]
    path = tmp_path / "table.csv"
    path.write_text("\n".join([*head, *sold(45), "", *sold(45), *end]) + "\n")
    source = read_source(path)
    assert len(source.frame) == 90
    assert source.mended == (
        "the 3 lines above the table are left out",
        "warning: the last 2 lines are left out: column 'shop' has 'Total' there",
    )
    path.write_text("\n".join([head[-1], *sold(), "*;4545;9,5;"]) + "\n")
    (said,) = read_source(path).mended
    assert said == "warning: the last line is left out: column 'shop' has '*' there", "a total of SAP"
    path.write_text("\n".join([head[-1], *(line.replace("shop 1", "Total") for line in sold())]) + "\n")
    assert len(read_source(path).frame) == 90, "a word of a sum that many rows have is a category"
    last = [line.replace("shop", "Total") for line in sold(5)]
    path.write_text("\n".join([head[-1], *sold(300), *last]) + "\n")
    assert len(read_source(path).frame) == 305, "and so it is at the end of a sorted table"


def test_comments_among_the_rows_are_no_rows(tmp_path: Path) -> None:
    lines = ["# made by x", "#", "shop;sold;rate;y", *sold(40), "# gauge; changed", "#", *sold(40), "# end"]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    source = read_source(path)
    assert source.frame["y"].tolist() == ["a", "b"] * 40
    said = "comments, rules, empty lines or the header again are left out, such as '# gauge'"
    assert source.mended == ("the 2 lines above the table are left out", said)
    path.write_text("\n".join([*["# by x"] * 25, "shop,y", *(f"{n},{n % 2}" for n in range(80))]) + "\n")
    source = read_source(path)
    assert source.frame["shop"].tolist() == [*map(str, range(80))], "many are above a table, of two columns, too"
    ids = [f"#{n};{n};{n % 9}.5{';a' if n % 9 else ''}" for n in range(80)]
    path.write_text("\n".join(["shop;sold;rate;y", *ids]) + "\n")
    source = read_source(path)
    assert len(source.frame) == 80, "where rows begin with it, it is no comment"
    assert source.mended == ("warning: 9 lines have too few fields, line 2 first: column 'y' is empty there",)


@pytest.mark.parametrize(
    ("second", "is_left_out"), [(";€;[%];", True), ("text;float;float;text", True), ("x;n/a;n/a;a", False)]
)
def test_units_below_the_header_are_no_row(tmp_path: Path, second: str, is_left_out: bool) -> None:
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["shop;sold;rate;y", second, *sold()]) + "\n")
    source = read_source(path)
    assert len(source.frame) == 91 - is_left_out
    said = f"warning: the line below the header is left out: column 'sold' has {second.split(';')[1]!r} there"
    assert source.mended == (said,) * is_left_out


@pytest.mark.parametrize(
    ("first", "has_header"), [("shop 3;17;4,5;a", False), ("country;2019;2020;y", True), ("shop;sold;rate;y", True)]
)
def test_a_first_line_that_is_like_the_others_is_no_header(tmp_path: Path, first: str, has_header: bool) -> None:
    path = tmp_path / "table.csv"
    path.write_text("\n".join([first, *sold()]) + "\n")
    source = read_source(path)
    assert source.header is has_header
    assert len(source.frame) == 90 + (not has_header)

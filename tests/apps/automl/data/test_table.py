"""Reading the user's table: what is refused with one clear line, and what becomes of odd columns."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from apc_automl.data.table import decode_rows, encode_rows, read_table
from apc_automl.data.table_schema import ColumnKind, ProblemKind
from apc_automl.errors import TableInvalid

WriteTable = Callable[[str], Path]


def rows_of(lines: list[str], header: str = "size,colour,kind") -> str:
    return "\n".join([header, *lines]) + "\n"


def usual_lines(count: int = 60) -> list[str]:
    return [f"{number / 7},{'red' if number % 3 else 'blue'},{'a' if number % 2 else 'b'}" for number in range(count)]


BROKEN = {
    "empty file": ("", "is empty"),
    "header only": ("size,kind\n", "no rows"),
    "five rows": (rows_of(usual_lines(5)), "5 usable rows"),
    "no such target": (rows_of(usual_lines(), header="size,colour,sort"), "no column 'kind'"),
    "one class": (rows_of([f"{number},red,a" for number in range(60)]), "the one value 'a'"),
    "constant number": (rows_of([f"{number},red,3" for number in range(60)]), "the one value"),
    "target without values": (rows_of([f"{number},red," for number in range(60)]), "0 usable rows"),
    "names as target": (rows_of([f"{number},red,name{number}" for number in range(60)]), "fewer than two classes"),
    "no features": (rows_of([f"1,red,{'ab'[number % 2]}" for number in range(60)]), "no usable column"),
    "two columns of one name": (rows_of(usual_lines(), header="size,size ,kind"), "two columns of one name"),
    "ragged": (rows_of([*usual_lines(), "1,2,3,4,5"]), "cannot be read"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_table_that_cannot_be_learned_from_gives_one_line(case: str, write_table: WriteTable) -> None:
    text, expected = BROKEN[case]
    with pytest.raises(TableInvalid) as refused:
        read_table(write_table(text), "kind")
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_a_folder_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    binary = tmp_path / "picture.csv"
    binary.write_bytes(b"\x89PNG\xff\xfe\x00\x01" * 50)
    for path in (tmp_path / "none.csv", tmp_path, binary):
        with pytest.raises(TableInvalid):
            read_table(path, "kind")


def test_each_column_is_a_number_a_category_a_date_or_a_text(write_table: WriteTable) -> None:
    lines = [
        f"{line},comment {number},{1 + number % 28:02d}.{1 + number % 12:02d}.2024,{number % 5 > 2}"
        for number, line in enumerate(usual_lines())
    ]
    table = read_table(write_table(rows_of(lines, "size,colour,kind,remark,when,flag")), "kind")
    kinds = {column.name: column.kind for column in table.schema.columns}
    assert kinds == {
        "size": ColumnKind.NUMERIC,
        "colour": ColumnKind.CATEGORICAL,
        "remark": ColumnKind.TEXT,
        "when": ColumnKind.DATE,
        "flag": ColumnKind.NUMERIC,
    }
    assert table.schema.of_kind(ColumnKind.DATE)[0].date_format == "%d.%m.%Y"
    assert any("'when' is a date" in note for note in table.schema.notes)


@pytest.mark.parametrize(
    ("header", "cell", "reason"),
    [
        ("customer_id", lambda number: f"c{number * 7919 % 1000:03d}", "it names the rows"),
        ("number", lambda number: number + 5, "it numbers the rows"),
        ("same", lambda _: "x", "it has one value only"),
        ("nothing", lambda _: "", "it is empty"),
    ],
)
def test_a_column_that_tells_nothing_is_left_out_and_said(
    header: str, cell: Callable[[int], object], reason: str, write_table: WriteTable
) -> None:
    lines = [f"{line},{cell(number)}" for number, line in enumerate(usual_lines())]
    table = read_table(write_table(rows_of(lines, f"size,colour,kind,{header}")), "kind")
    assert [column.name for column in table.schema.columns] == ["size", "colour"]
    assert f"column {header!r} is left out: {reason}" in table.schema.notes


def test_missing_values_stay_missing_and_unlabelled_rows_go(write_table: WriteTable) -> None:
    lines = usual_lines()
    lines[3], lines[4], lines[5] = ",red,a", "1.5,,b", "2.5,red,"
    table = read_table(write_table(rows_of(lines)), "kind")
    assert len(table.frame) == 59
    assert int(table.frame["size"].isna().sum()) == 1
    assert int(table.frame["colour"].isna().sum()) == 1
    assert table.schema.columns[0].has_missing


def test_rare_classes_are_left_out_and_said(write_table: WriteTable) -> None:
    table = read_table(write_table(rows_of([*usual_lines(), "1,red,rare", "2,red,rare"])), "kind")
    assert table.schema.classes == ("a", "b")
    assert "class 'rare' of 'kind' is left out: it has 2 rows, fewer than 8" in table.schema.notes
    several = [f"1,red,rare{number}" for number in range(4)]
    notes = read_table(write_table(rows_of([*usual_lines(), *several])), "kind").schema.notes
    said = "4 classes of 'kind' are left out, 4 rows: each has fewer than 8 ('rare0', 'rare1', 'rare2', …)"
    assert said in notes


@pytest.mark.parametrize(
    ("target", "kind", "classes"),
    [
        (lambda number: number % 3, ProblemKind.CLASSIFICATION, (0, 1, 2)),
        (lambda number: number * 1.5, ProblemKind.REGRESSION, ()),
        (lambda number: number, ProblemKind.REGRESSION, ()),
        (lambda number: bool(number % 2), ProblemKind.CLASSIFICATION, ("False", "True")),
    ],
)
def test_the_kind_of_problem_follows_from_the_target(
    target: Callable[[int], object], kind: ProblemKind, classes: tuple[object, ...], write_table: WriteTable
) -> None:
    lines = [f"{number / 7},red,{target(number)}" for number in range(60)]
    lines[0] = lines[0].replace("red", "blue")
    schema = read_table(write_table(rows_of(lines)), "kind").schema
    assert (schema.problem, schema.classes) == (kind, classes)


def test_semicolons_and_a_byte_order_mark_are_understood(write_table: WriteTable) -> None:
    text = "\ufeff" + rows_of(usual_lines()).replace(",", ";")
    assert read_table(write_table(text), "kind").schema.classes == ("a", "b")


def test_rows_survive_the_way_through_bytes(write_table: WriteTable) -> None:
    lines = usual_lines()
    lines[4] = '0.1,"red, ""dark""\nshade",b'
    lines[5] = '0.30000000000000004,"red, ""dark""\nshade",b'
    lines[6] = ",,b"
    table = read_table(write_table(rows_of(lines)), "kind")
    features, labels = decode_rows(encode_rows(table), table.schema)
    assert features["size"].iloc[5] == 0.30000000000000004
    assert features["colour"].iloc[4] == 'red, "dark"\nshade'
    assert np.isnan(features["size"].iloc[6])
    assert labels.tolist() == table.frame["kind"].tolist()
    assert encode_rows(table) == encode_rows(table)

"""How the columns of a table are written is told from all of their cells, and new rows are read by the record of it."""

import random
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pandas as pd
import pytest

from apc_automl.data.columns import differences, encode_features, parse_number
from apc_automl.data.source import read_source
from apc_automl.data.table import Table, read_table
from apc_automl.data.table_schema import ColumnKind, Schema, TableOptions
from apc_automl.errors import TableInvalid

ROWS = 300


def german(value: float, digits: int = 2) -> str:
    return f"{value:,.{digits}f}".replace(",", " ").replace(".", ",").replace(" ", ".")


def amounts(rows: int = ROWS) -> list[float]:
    dice = random.Random(1)
    return [round(dice.uniform(1, 20_000), 2) for _ in range(rows)]


def written(tmp_path: Path, header: str, line: Callable[[int], str], rows: int = ROWS) -> Path:
    path = tmp_path / "table.csv"
    path.write_text("\n".join([header, *map(line, range(rows))]) + "\n", encoding="utf-8")
    return path


def kinds(table: Table) -> dict[str, str]:
    return {column.name: column.kind.value for column in table.schema.columns}


def test_signs_are_taken_out_only_of_columns_that_are_wholly_such_numbers(tmp_path: Path) -> None:
    values = amounts()
    path = written(
        tmp_path,
        "date;version;amount;address;customer;phone;y",
        lambda n: (
            f"{1 + n % 28:02d}.{1 + n % 12:02d}.2021;1.{n % 9}.{10 + n % 80};{german(values[n])};10.{n % 200}.1.7;"
            f"{n * 37 % 1000:05d};030 {1_234_567 + n};{'ab'[n % 2]}"
        ),
    )
    table = read_table(path, "y")
    assert table.frame["amount"].tolist() == values
    assert table.frame["date"].iloc[0] == "01.01.2021"
    assert table.frame["version"].iloc[1] == "1.1.11"
    assert table.frame["customer"].iloc[1] == "00037"
    assert table.frame["phone"].iloc[0] == "030 1234567"
    assert kinds(table) == {
        "date": "date",
        "version": "text",
        "amount": "numeric",
        "address": "text",
        "customer": "text",
        "phone": "text",
    }


@pytest.mark.parametrize(
    "write",
    [
        lambda value: f'"{value:,.0f}"',
        lambda value: f'"${value:,.2f}"',
        lambda value: f"{value:.2f} €",
        lambda value: f"{value:.1f}%",
        lambda value: f"{value:,.2f}".replace(",", "'"),
        lambda value: f"{value:,.2f}".replace(",", "\u2019"),
        lambda value: f"{value:,.2f}".replace(",", "\u202f"),
        lambda value: f"{value:,.2f}".replace(",", "\u00a0"),
        lambda value: f"({value:.2f})",
        lambda value: f"{value:.2f}-",
    ],
)
@pytest.mark.parametrize("is_sorted", [False, True])
def test_numbers_in_the_dress_of_a_locale_are_numbers(
    tmp_path: Path, write: Callable[[float], str], is_sorted: bool
) -> None:
    values = sorted(amounts()) if is_sorted else amounts()
    table = read_table(written(tmp_path, "x,y", lambda n: f"{write(values[n])},{'ab'[n % 2]}"), "y")
    assert kinds(table) == {"x": "numeric"}
    assert (table.frame["x"].abs() - values).abs().max() <= 0.5


def test_an_odd_cell_counts_as_missing_and_is_named(tmp_path: Path) -> None:
    values = amounts(900)
    cells = [f"{value:.2f}" for value in values]
    cells[700], cells[701] = "n.v.", "see mail"
    table = read_table(written(tmp_path, "x,y", lambda n: f"{cells[n]},{'ab'[n % 2]}", 900), "y")
    assert table.frame["x"].isna().sum() == 2
    assert any("warning: column 'x': 2 cells are no number" in note for note in table.schema.notes)


@pytest.mark.parametrize("word", ["None", "NA", "null", "nan", "N/A"])
def test_a_word_is_a_class_or_a_category_and_only_an_empty_cell_is_missing(tmp_path: Path, word: str) -> None:
    path = written(tmp_path, "x,z,y", lambda n: f"{n % 7},{['', word, 'DE'][n % 3]},{[word, 'Mild'][n % 2]}")
    table = read_table(path, "y")
    assert table.schema.classes == tuple(sorted([word, "Mild"]))
    assert len(table.frame) == ROWS
    assert table.frame["z"].isna().sum() == ROWS / 3
    assert set(table.frame["z"].dropna()) == {word, "DE"}


@pytest.mark.parametrize(
    ("header", "end"), [("y,a,b,c", ","), ("y,a,b,c,", ","), ("y,a,b,c,", ""), ("y,a,b,c,,", ",,"), ("y,a,b,c", ",,")]
)
def test_a_separator_at_the_end_of_lines_moves_no_column(tmp_path: Path, header: str, end: str) -> None:
    values = amounts()
    path = written(tmp_path, header, lambda n: f"{n % 2},{values[n]},{n % 5},{n % 3}{end}")
    table = read_table(path, "y")
    assert table.schema.classes == (0, 1)
    assert table.frame["a"].tolist() == values


def test_a_header_that_lacks_a_name_is_refused_unless_the_first_column_numbers_the_rows(tmp_path: Path) -> None:
    path = written(tmp_path, "y,a,b", lambda n: f"{n % 2},{n * 7 % 11},{n % 5},{n % 3}")
    with pytest.raises(TableInvalid, match="the header has 3 names, line 2 has 4 fields; add the name"):
        read_table(path, "y")
    path = written(tmp_path, "y,a,b", lambda n: f"{n + 1},{n % 2},{n * 7 % 11},{n % 5}")
    table = read_table(path, "y")
    assert table.schema.classes == (0, 1)
    assert table.frame["b"].iloc[3] == 3


@pytest.mark.parametrize(
    ("cell", "option", "as_default", "as_told", "is_warned"),
    [
        ("1.234", TableOptions(decimal=","), 1.234, 1234.0, True),
        ("1,234", TableOptions(decimal="."), 1.234, 1234.0, True),
        ("03.04.2021", TableOptions(dates="month-first"), "%d.%m.%Y", "%m.%d.%Y", False),
        ("03/04/2021", TableOptions(dates="month-first"), "%d/%m/%Y", "%m/%d/%Y", True),
    ],
)
def test_what_a_column_does_not_tell_is_said_and_can_be_told(
    tmp_path: Path, cell: str, option: TableOptions, as_default: float | str, as_told: float | str, is_warned: bool
) -> None:
    path = written(
        tmp_path, "x;y;z", lambda n: f"{cell if n % 2 else cell.replace('3', '2', 1)};{'ab'[n // 3 % 2]};w{n % 9}"
    )

    def read(options: TableOptions | None) -> tuple[float | str | None, list[bool]]:
        table = read_table(path, "y", options=options)
        column = table.schema.columns[0]
        said = [note.startswith("warning: ") for note in table.schema.notes if "column 'x'" in note and "--d" in note]
        return column.date_format if column.kind is ColumnKind.DATE else table.frame["x"].iloc[1], said

    assert read(None) == (as_default, [is_warned])
    assert read(option) == (as_told, [])


@pytest.mark.parametrize(
    ("other", "sign", "form", "is_warned"),
    [
        ("25/12/2021", ".", "%d/%m/%Y", False),
        ("12/25/2021", ".", "%m/%d/%Y", False),
        ("west", ",", "%d/%m/%Y", False),
        ("west", ".", "%d/%m/%Y", True),
    ],
)
def test_what_other_columns_tell_of_days_and_months_is_no_warning(
    tmp_path: Path, other: str, sign: str, form: str, is_warned: bool
) -> None:
    path = written(tmp_path, "x;z;v;y", lambda n: f"0{1 + n % 9}/04/2021;{other};{n % 90}{sign}5;{'ab'[n // 3 % 2]}")
    table = read_table(path, "y")
    assert table.schema.columns[0].date_format == form
    said = [note for note in table.schema.notes if "column 'x'" in note and "--dates tells it" in note]
    assert [note.startswith("warning: ") for note in said] == [is_warned]


@pytest.fixture
def schema(tmp_path: Path) -> Schema:
    """Of a table with German numbers."""
    values = amounts()
    path = written(
        tmp_path,
        "turnover;quota;rate;kind;day;y",
        lambda n: (
            f"{german(values[n])};{german(values[n] / 3000, 3)};{n % 90},5%;{'red' if n % 3 else 'blue'};"
            f"{1 + n % 28:02d}.{1 + n % 12:02d}.2021;{german(values[n] * 3)}"
        ),
    )
    return read_table(path, "y").schema


def rows(tmp_path: Path, *lines: str, separator: str = ";") -> pd.DataFrame:
    path = tmp_path / "new.csv"
    path.write_text("\n".join(["turnover;quota;rate;kind;day".replace(";", separator), *lines]) + "\n")
    return read_source(path).frame


def test_new_rows_without_fractions_are_read_by_the_record(tmp_path: Path, schema: Schema) -> None:
    frame = rows(tmp_path, "7.599;1;5%;red;01.02.2022", "12.000;2,125;6%;blue;02.02.2022")
    assert differences(frame, schema) == []
    lines = encode_features(frame, schema).decode().splitlines()
    assert lines[1].startswith("7599.0,1.0,5.0,red,01.02.2022")
    assert lines[2].startswith("12000.0,2.125,6.0,blue,02.02.2022")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "1234.5;1;5%;red;01.02.2022",
            r"column 'turnover' holds numbers with the decimal sign ',' .* row 1 has '1234.5'",
        ),
        ("7.599;1.234;5%;red;01.02.2022", "column 'quota' holds numbers with the decimal sign ',' and none between"),
        ("7.599;1;5;red;01.02.2022", "column 'rate' holds numbers with '%' in the model; row 1 has '5'"),
        ("7.599 €;1;5%;red;01.02.2022", "column 'turnover' holds numbers without a unit in the model"),
        ("7.599;1;5%;red;2022-02-01", "column 'day' holds dates like %d.%m.%Y in the model; row 1 has '2022-02-01'"),
        ("many;1;5%;red;01.02.2022", "column 'turnover' holds numbers in the model; row 1 has 'many'"),
    ],
)
def test_new_rows_that_contradict_the_record_are_refused_by_column(
    tmp_path: Path, schema: Schema, line: str, said: str
) -> None:
    with pytest.raises(TableInvalid, match=said):
        encode_features(rows(tmp_path, line), schema)


def test_new_rows_with_another_decimal_sign_are_read_when_it_is_told(tmp_path: Path, schema: Schema) -> None:
    line = '"1,234.50",1.234,5%,red,01.02.2022'
    frame = rows(tmp_path, line, separator=",")
    with pytest.raises(TableInvalid, match="column 'turnover'"):
        encode_features(frame, schema)
    assert encode_features(frame, schema, ".").decode().splitlines()[1].startswith("1234.5,1.234,5.0,red")


def test_categories_that_are_none_of_the_model_are_said_or_refused(tmp_path: Path, schema: Schema) -> None:
    lines = [f"7.599;1;5%;{kind};01.02.2022" for kind in ("red", "green", "red", "blue", "red")]
    assert "column 'kind': 1 cells are new to the model, such as 'green'" in differences(rows(tmp_path, *lines), schema)
    with pytest.raises(TableInvalid, match="column 'kind' holds categories such as 'blue' in the model"):
        encode_features(rows(tmp_path, *[line.replace("red", "rot").replace("blue", "x") for line in lines]), schema)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["3.860 kg", "762 g", "1.2 kg"], "has numbers of several units, g and kg: it is read as text"),
        (["25 lutego 2024", "3 marca 2024"], "has dates or times such as '25 lutego 2024', which are not read"),
        (["Di, 14.03.2021", "Mo, 8.3.2021"], "has dates or times such as 'Di, 14.03.2021', which are not read"),
        (["14.03.2021, 20:36 Uhr", "8.3.2021, 8:05 Uhr"], "such as '14.03.2021, 20:36 Uhr', which are not read"),
        (["2021年3月4日", "2021年11月4日"], "has dates or times such as '2021年3月4日', which are not read"),
        (["Okt 20", "Mär 21"], "has dates or times such as 'Okt 20', which are not read"),
        (["3.5", '"3,5"', "4.5", '"4,25"'], "has numbers with a decimal point and others with a comma"),
        (["3 KB", "7 MB"], "has numbers of several units, KB and MB: it is read as text"),
        (["25:30", "31:05", "8:05"], "has dates or times such as '25:30', which are not read: it is read as text"),
        (["3.8k", "762", "1.1M"], "has numbers of several units, none and M and k: it is read as text"),
        (["3.8 CR", "7.62 DR"], "has numbers of several units, CR and DR: it is read as text"),
        (["3.860 kg", "762 g", "n/a"], "has numbers of several units, g and kg: it is read as text"),
        (["1:25", "1:50"], "has dates or times such as '1:25', which are not read: it is read as text"),
        (["1.1", "1.10", "2.3"], "with and without a zero at their end, as the names of versions are written"),
        (["03/23/68", "08/23/91"], "'03/23/68' is read as a date of 2068; write years with four digits"),
    ],
)
def test_what_is_not_read_as_it_is_meant_is_said_of_the_column(tmp_path: Path, cells: list[str], said: str) -> None:
    table = read_table(written(tmp_path, "x|y", lambda n: f"{cells[n % len(cells)]}|{'ab'[n // 3 % 2]}"), "y")
    assert any(note.startswith("warning: column 'x'") and said in note for note in table.schema.notes)


@pytest.mark.parametrize(
    "cells", [["1A", "1B", "2A"], ["12", "12a", "14"], ["1.2.3", "1.2.10"], ["10.0.0.1", "10.0.2.1"]]
)
def test_names_of_classes_houses_and_versions_are_no_doubt(tmp_path: Path, cells: list[str]) -> None:
    table = read_table(written(tmp_path, "x,y", lambda n: f"{cells[n % len(cells)]},{'ab'[n // 3 % 2]}"), "y")
    assert kinds(table) == {"x": "categorical"}
    assert not any("column 'x'" in note for note in table.schema.notes)


@pytest.mark.parametrize(
    ("pairs", "form"),
    [
        ({"3. März 2021": "3. March 2021", "Mi., 5. Mai 2021": "5. May 2021"}, "%d. %B %Y"),
        ({"3 Mär 2021": "3 March 2021", "4 Apr 2021": "4 April 2021", "4 Dez. 2021": "4 December 2021"}, "%d %B %Y"),
        ({"3 de marzo de 2021": "3 March 2021", "30 de enero de 2022": "30 January 2022"}, "%d %B %Y"),
        ({"3 août 2021": "3 August 2021", "1 décembre 2021": "1 December 2021"}, "%d %B %Y"),
        ({"März 2021": "March 2021", "Mai 2022": "May 2022"}, "%B %Y"),
        (
            {"3. März 2021, 8:05 Uhr": "3. March 2021 8:05", "4. Juni 2021 14:30": "4. June 2021 14:30"},
            "%d. %B %Y %H:%M",
        ),
    ],
)
def test_months_are_read_in_several_languages(tmp_path: Path, pairs: dict[str, str], form: str) -> None:
    cells = [*pairs]
    table = read_table(written(tmp_path, "x;y", lambda n: f"{cells[n % len(cells)]};{'ab'[n // 3 % 2]}"), "y")
    assert table.schema.columns[0].date_format == form
    assert table.frame["x"].iloc[: len(pairs)].tolist() == [*pairs.values()]
    assert not any(note.startswith("warning: column 'x'") for note in table.schema.notes)
    new = encode_features(pd.DataFrame({"x": cells}), table.schema)
    assert new.decode().splitlines()[1].startswith(pairs[cells[0]])


@pytest.mark.parametrize(
    ("cells", "form"),
    [
        (["3 Mar 2021", "4 May 2021", "5 Dec 2021"], "%d %b %Y"),
        (["Wednesday, 3. March 2021", "Tuesday, 4. May 2021"], "%A, %d. %B %Y"),
    ],
)
def test_english_months_stay_as_they_are_written(tmp_path: Path, cells: list[str], form: str) -> None:
    table = read_table(written(tmp_path, "x;y", lambda n: f"{cells[n % len(cells)]};{'ab'[n // 3 % 2]}"), "y")
    assert (table.schema.columns[0].date_format, table.frame["x"].iloc[0]) == (form, cells[0])
    new = encode_features(pd.DataFrame({"x": cells}), table.schema)
    assert pd.read_csv(BytesIO(new))["x"].tolist() == cells


@pytest.mark.parametrize(
    "cells",
    [
        ("14:30 Uhr", "8.15 Uhr", "9 Uhr"),
        ("2:30 PM", "8:15 AM", "9:00 am"),
        ("2:30 p.m.", "8:15 a.m.", "9 a.m."),
        ("14:30", "08:15", "09:00"),
        ("14:30:00", "08:15:00", "09:00:00"),
        ("14h30", "8h15", "9h00"),
    ],
)
def test_times_of_day_are_hours(tmp_path: Path, cells: tuple[str, ...]) -> None:
    table = read_table(written(tmp_path, "x;y", lambda n: f"{cells[n % 3]};{'ab'[n // 3 % 2]}"), "y")
    assert kinds(table) == {"x": "numeric"}
    assert table.frame["x"].iloc[:3].tolist() == [14.5, 8.25, 9.0]
    assert f"column 'x' is a time of day, in hours: {cells[0]!r} is 14.5" in table.schema.notes
    new = encode_features(pd.DataFrame({"x": ["23:45", ""]}), table.schema)
    assert new.decode().splitlines()[1:] == ["23.75,a", ",a"]
    with pytest.raises(TableInvalid, match="column 'x' holds numbers with 'time of day' in the model; row 1 has '5'"):
        encode_features(pd.DataFrame({"x": ["5"]}), table.schema)


def test_a_truth_may_be_missing(tmp_path: Path) -> None:
    cells = ["TRUE", "FALSE", "NULL", "true"]
    table = read_table(written(tmp_path, "x,y", lambda n: f"{cells[n % 4]},{'ab'[n // 3 % 2]}"), "y")
    assert table.frame["x"].iloc[:4].fillna(-1).tolist() == [1.0, 0.0, -1.0, 1.0]
    cells[2] = "unknown"
    table = read_table(written(tmp_path, "x,y", lambda n: f"{cells[n % 4]},{'ab'[n // 3 % 2]}"), "y")
    assert kinds(table) == {"x": "categorical"}, "another word is a category"
    line = lambda n: f"{'later' if n == 7 else cells[n % 2]},{'ab'[n // 3 % 2]}"  # noqa: E731
    notes = read_table(written(tmp_path, "x,y", line), "y").schema.notes
    assert "warning: column 'x': 1 cell is no number and counts as missing, such as 'later' in row 8" in notes


def test_marks_of_a_missing_cell_may_be_many(tmp_path: Path) -> None:
    cells = ["k. A.", "---", "n.c.", "Not Available", "\\N"]
    days = ["0000-00-00", "0000-00-00 00:00:00", "00.00.0000", "00000000"]
    table = read_table(
        written(
            tmp_path,
            "number,day,word,y",
            lambda n: (
                f"{cells[n % 5] if n % 4 == 0 else n * 37 % 101},"
                f"{days[n % 3] if n % 4 == 0 else f'2021-03-{1 + n % 28:02d}'},{'ab'[n % 2] if n % 3 else cells[-1]},"
                f"{'ab'[n // 3 % 2]}"
            ),
        ),
        "y",
    )
    assert kinds(table) == {"number": "numeric", "day": "date", "word": "categorical"}
    assert table.frame[["number", "day", "word"]].isna().sum().tolist() == [ROWS // 4, ROWS // 4, ROWS // 3]
    assert not any(note.startswith("warning:") and "missing" in note for note in table.schema.notes)
    days[0] = days[3]
    path = written(tmp_path, "x,y", lambda n: f"{days[0] if n % 9 == 0 else f'202103{1 + n % 28:02d}'},{'ab'[n % 2]}")
    assert read_table(path, "y").schema.columns[0].date_format == "%Y%m%d"


def test_zeros_that_are_saved_from_excel_are_read_without_what_saves_them(tmp_path: Path) -> None:
    cell = '"=""0{n}""",="{m}.5"'
    table = read_table(
        written(tmp_path, "zip,x,y", lambda n: f"{cell.format(n=n % 9, m=n * 37 % 101)},{'ab'[n // 3 % 2]}"), "y"
    )
    assert kinds(table) == {"zip": "categorical", "x": "numeric"}
    assert table.frame.iloc[1].tolist() == ["01", 37.5, "a"]
    new = encode_features(pd.DataFrame({"zip": ['="03"'], "x": ['="4"']}), table.schema)
    assert new.decode().splitlines()[1:] == ["03,4.0,a"]


def test_a_word_that_may_say_that_a_cell_is_missing_is_told_of(tmp_path: Path) -> None:
    path = written(tmp_path, "x,y", lambda n: f"{['yes', 'no', 'k.A.'][n % 3]},{'ab'[n // 3 % 2]}")
    table = read_table(path, "y")
    assert table.schema.columns[0].known == ("k.A.", "no", "yes")
    assert "column 'x': 'k.A.' is a text there, no missing cell" in table.schema.notes


def test_a_number_of_which_only_a_bound_is_known_is_missing_and_told_of(tmp_path: Path) -> None:
    path = written(tmp_path, "x,y", lambda n: f"{'<0.5' if n % 5 == 0 else 0.5 + n * 37 % 101},{'ab'[n // 3 % 2]}")
    table = read_table(path, "y")
    assert kinds(table) == {"x": "numeric"}
    assert any("warning: column 'x': 60 cells are no number" in note for note in table.schema.notes)
    new = encode_features(pd.DataFrame({"x": ["< 0.2", "3"]}), table.schema)
    assert new.decode().splitlines()[1:] == [",a", "3.0,a"]
    path = written(tmp_path, "x,y", lambda n: f"{['<1', '1', '2', '>2'][n % 4]},{'ab'[n // 3 % 2]}")
    assert kinds(read_table(path, "y")) == {"x": "categorical"}, "a few are names of classes"


def test_dates_without_a_time_among_others_are_of_midnight(tmp_path: Path) -> None:
    line = lambda n: f"{1 + n % 28:02d}.03.2021{'' if n % 3 else ' 14:30'},{'ab'[n % 2]}"  # noqa: E731
    table = read_table(written(tmp_path, "x,y", line), "y")
    assert table.frame["x"].iloc[:2].tolist() == ["01.03.2021 14:30", "02.03.2021 00:00"]
    said = "column 'x': 200 dates have no time of day and are read as of midnight, such as '02.03.2021'"
    assert said in table.schema.notes
    assert b"03.03.2021 00:00" in encode_features(pd.DataFrame({"x": ["03.03.2021"]}), table.schema)
    always = read_table(written(tmp_path, "x,y", lambda n: f"0{1 + n % 9}.03.2021 8:30,{'ab'[n % 2]}"), "y").schema
    with pytest.raises(TableInvalid, match=r"column 'x' holds dates like %d\.%m\.%Y %H:%M"):
        encode_features(pd.DataFrame({"x": ["03.03.2021"]}), always)


def test_hundredths_that_people_type_are_numbers(tmp_path: Path) -> None:
    cells = ["0.5", "0.50", "1.05", "2.25"]
    table = read_table(written(tmp_path, "x,y", lambda n: f"{cells[n % 4]},{'ab'[n // 3 % 2]}"), "y")
    assert kinds(table) == {"x": "numeric"}


def test_a_short_year_with_a_time_is_a_date(tmp_path: Path) -> None:
    line = lambda n: f"{1 + n % 12:02d}/{1 + n % 28:02d}/23 {1 + n % 12:02d}:{n % 60:02d} PM,{'ab'[n % 2]}"  # noqa: E731
    assert read_table(written(tmp_path, "x,y", line), "y").schema.columns[0].date_format == "%m/%d/%y %I:%M %p"


@pytest.mark.parametrize(
    ("cell", "is_number"),
    [
        ("{},- €", True),
        ("CHF {}.\u2013", True),
        ("Rs. {}", True),
        ("{} kr", True),
        ("{} zł", True),
        ("\u200e{}\u202c", True),
        ("{} - {}", False),
        ("{},-{}", False),
    ],
)
def test_money_and_signs_that_nobody_sees(tmp_path: Path, cell: str, is_number: bool) -> None:
    path = written(tmp_path, "x;y", lambda n: f"{cell.format(n * 37 % 101, 7)};{'ab'[n // 3 % 2]}")
    table = read_table(path, "y")
    assert kinds(table)["x"] == ("numeric" if is_number else "text")
    assert not is_number or table.frame["x"].iloc[:3].tolist() == [0.0, 37.0, 74.0]


@pytest.mark.parametrize(("text", "value"), [("\u0661\u0662.5", 12.5), ("\u20132.5", -2.5), ("\u22122.5", -2.5)])
def test_digits_and_signs_of_other_scripts_are_read(text: str, value: float) -> None:
    number = parse_number(text)
    assert number is not None and number.value(".") == value


@pytest.mark.parametrize(("cell", "kind"), [("2021-03-{:02d}", "date"), ("{}.5", "numeric")])
def test_a_column_of_which_most_is_missing_is_what_the_rest_is(tmp_path: Path, cell: str, kind: str) -> None:
    path = written(
        tmp_path, "x,y", lambda n: f"{cell.format(1 + n // 4 % 28) if n % 4 == 0 else 'NULL'},{'ab'[n // 3 % 2]}"
    )
    table = read_table(path, "y")
    assert kinds(table) == {"x": kind}
    path = written(tmp_path, "x,y", lambda n: f"{['none', 'none', '1'][n % 3]},{'ab'[n // 2 % 2]}")
    assert kinds(read_table(path, "y")) == {"x": "categorical"}, "one number is a class"


@pytest.mark.parametrize(
    ("cells", "form"),
    [
        (["Feb-20", "Dec-19"], "%b-%y"),
        ([f"{day}.{day % 12 + 1}.21" for day in range(1, 29)], "%d.%m.%y"),
        ([f"1.{day % 12}.{day}" for day in range(10, 40)], None),
        ([f"202103{day:02d}1030" for day in range(1, 29)], "%Y%m%d%H%M"),
        (["Tue, 2 Mar 2021 10:00", "Wed, 3 Mar 2021 11:00"], "%a, %d %b %Y %H:%M"),
        (["1/31/21", "12/1/21"], "%m/%d/%y"),
        (["5-Jan-21", "31-May-21"], "%d-%b-%y"),
        (["1.2.21", "3.4.21"], None),
    ],
)
def test_a_day_without_its_zero_is_a_date_but_no_version_is(tmp_path: Path, cells: list[str], form: str | None) -> None:
    table = read_table(written(tmp_path, "x;y", lambda n: f"{cells[n % len(cells)]};{'ab'[n // 3 % 2]}"), "y")
    assert table.schema.columns[0].date_format == form


def test_rows_in_order_tell_the_day_from_the_month(tmp_path: Path) -> None:
    days = [f"{day:02d}/{month:02d}/2021" for month in range(1, 13) for day in range(1, 13)]
    table = read_table(written(tmp_path, "x,y", lambda n: f"{days[n]},{'ab'[n // 3 % 2]}", len(days)), "y")
    assert table.schema.columns[0].date_format == "%d/%m/%Y"
    assert not any(note.startswith("warning: column 'x'") for note in table.schema.notes)


@pytest.mark.parametrize(("cell", "is_warned"), [("{0:,}", True), ("{1:.3f}", False)])
def test_a_quoted_sign_that_may_be_either_is_told_of(tmp_path: Path, cell: str, is_warned: bool) -> None:
    path = written(tmp_path, "x,y", lambda n: f'"{cell.format(1001 + 37 * n, 1.001 + n)}",{"ab"[n % 2]}')
    assert any("--decimal tells it" in note for note in read_table(path, "y").schema.notes) is is_warned

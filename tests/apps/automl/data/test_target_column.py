"""A target that is missing or misspelled is refused with the columns to choose from."""

from pathlib import Path

import pytest

from apc_automl.data.table import find_column
from apc_automl.data.table_schema import TableOptions
from apc_automl.errors import TableInvalid
from apc_automl.run.form import RunForm

TABLE = Path("customers.csv")
COLUMNS = ["age", "Plan", "cancelled"]


def refusal(target: str | None, columns: list[str]) -> str:
    with pytest.raises(TableInvalid) as refused:
        find_column(TABLE, target, columns)
    return str(refused.value)


def test_spaces_around_the_name_do_not_count() -> None:
    assert find_column(TABLE, " Plan ", COLUMNS) == "Plan"


def test_without_a_target_all_columns_are_named() -> None:
    assert refusal(None, COLUMNS) == (
        "name the column of customers.csv to predict with --target; its columns are: age, Plan, cancelled"
    )


@pytest.mark.parametrize(("target", "meant"), [("canceled", "cancelled"), ("plan", "Plan"), ("AGE", "age")])
def test_the_nearest_name_is_asked_for(target: str, meant: str) -> None:
    assert f"no column {target!r} to predict (do you mean {meant!r}?); its columns are: age" in refusal(target, COLUMNS)


def test_nothing_is_asked_for_when_no_name_is_near() -> None:
    assert "do you mean" not in refusal("weather", COLUMNS)


def test_many_and_long_names_stay_one_short_line() -> None:
    words = refusal("y", [f"column\n{number} {'x' * 200}" for number in range(5_000)])

    assert words.endswith(" and 4,980 more")
    assert "\n" not in words
    assert len(words) < 1_000


def test_the_columns_are_read_as_the_options_say(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a|b;c\n1|2;3\n")

    with pytest.raises(TableInvalid, match=r"its columns are: a, b;c$"):
        RunForm(path, None, source=TableOptions(separator="|")).settings(tmp_path)
    assert list(tmp_path.iterdir()) == [path]

"""Tables with leakage: the claimed error is the true one, or a warning names the reason."""

import itertools
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import mean_squared_error

from apc_automl.data.columns import as_numbers
from apc_automl.data.split import Parts, keep_together, make_folds, split_rows
from apc_automl.data.table import Table, decode_groups, encode_rows, read_table
from apc_automl.data.table_schema import TableOptions
from apc_automl.errors import TableInvalid
from apc_automl.training.measuring import prepare

ROWS = 600
Lines = list[list[str]]
Rows = np.ndarray[Any, np.dtype[np.int64]]
WriteTable = Callable[[str], Path]


def table_of(header: str, rows: Lines) -> str:
    return "\n".join([header, *map(",".join, rows)]) + "\n"


def repeated(dice: random.Random) -> str:
    """Noise, each row four times."""
    rows = [[*(f"{dice.random():.4f}" for _ in range(4)), str(dice.randrange(2))] for _ in range(ROWS // 4)]
    rows = rows * 4
    dice.shuffle(rows)
    return table_of("a,b,c,d,y", rows)


def walk(dice: random.Random, *, is_dated: bool = True) -> str:
    """Noise, and a target that walks from day to day."""
    value, rows = 0.0, []
    for day in range(ROWS):
        value += dice.gauss(0, 1)
        month = day // 28
        date = [f"{2019 + month // 12}-{1 + month % 12:02d}-{1 + day % 28:02d}"] if is_dated else []
        rows.append([*date, f"{dice.random():.4f}", f"{dice.random():.4f}", f"{value:.3f}"])
    return table_of("day,a,b,y" if is_dated else "a,b,y", rows)


def customers(dice: random.Random) -> str:
    """The columns tell the customer, and each customer has its own target."""
    rows = []
    for number in range(60):
        own, label = [dice.random() for _ in range(3)], dice.gauss(0, 5)
        for _ in range(ROWS // 60):
            cells = [f"{value + dice.gauss(0, 0.001):.4f}" for value in own]
            rows.append([f"c{number}", *cells, f"{label + dice.gauss(0, 0.3):.3f}"])
    dice.shuffle(rows)
    return table_of("customer,a,b,c,y", rows)


def copied(dice: random.Random) -> str:
    """A column that is known only after the target."""
    rows: Lines = []
    for _ in range(ROWS):
        label = dice.randrange(2)
        rows.append([f"{dice.random():.4f}", "paid" if label else "open", str(label)])
    return table_of("a,state,y", rows)


def numbered(dice: random.Random) -> str:
    """Rows that were numbered when they were sorted by the target."""
    labels = sorted(dice.randrange(2) for _ in range(ROWS))
    rows = [[str(7 * number + dice.randrange(5)), f"{dice.random():.4f}", str(y)] for number, y in enumerate(labels)]
    dice.shuffle(rows)
    return table_of("id,a,y", rows)


def notes_of(path: Path, options: TableOptions | None = None) -> str:
    return "\n".join(prepare(str(path), "y", None, 7, 1, 3000, options).profile["notes"])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (repeated, "450 rows repeat others in all columns but the target: equal rows stay together"),
        (walk, "judged on the latest by 'day'"),
        (lambda dice: walk(dice, is_dated=False), "warning: rows that follow each other are alike in 'y'"),
        (customers, "warning: rows of one 'customer' are alike: .*--group customer"),
        (copied, "warning: column 'state' predicts 'y' alone"),
        (numbered, "column 'id' is left out: it names the rows"),
    ],
)
def test_what_makes_a_score_too_good_is_mended_or_said(
    make: Callable[[random.Random], str], said: str, write_table: WriteTable
) -> None:
    for seed in range(3):
        assert re.search(said, notes_of(write_table(make(random.Random(seed)))))


def parts_of(path: Path, options: TableOptions, rounds: int = 2) -> tuple[Table, Parts]:
    table = keep_together(read_table(path, "y", options=options))
    return table, split_rows(table, 7, rounds, 3000)


def numbers(parts: Parts) -> list[Rows]:
    return [parts.train, parts.held_out, *parts.untouched]


@pytest.mark.parametrize("options", [TableOptions(), TableOptions(group="a")])
def test_equal_rows_and_rows_of_a_group_are_in_one_part_and_one_fold(
    options: TableOptions, write_table: WriteTable
) -> None:
    table, parts = parts_of(write_table(repeated(random.Random(1))), options)
    assert table.groups is not None
    seen = [set(table.groups[rows]) for rows in numbers(parts)]
    assert sum(map(len, seen)) == len(set().union(*seen)) == ROWS / 4
    assert sum(map(len, numbers(parts))) == ROWS
    assert len(parts.train) == pytest.approx(ROWS / 2, abs=ROWS / 20)
    held = decode_groups(encode_rows(table, parts.held_out), table.schema)
    assert held is not None
    assert set(held) == seen[1]
    for train, test in make_folds(table.schema, table.frame["y"].to_numpy(), table.groups, 4, 7):
        assert not set(table.groups[train]) & set(table.groups[test])


def test_a_sample_of_a_table_with_groups_keeps_them_whole(write_table: WriteTable) -> None:
    table, _ = parts_of(write_table(customers(random.Random(1))), TableOptions(group="customer"))
    parts = split_rows(table, 7, 2, 300)
    assert table.groups is not None
    sides = [set(table.groups[rows]) for rows in (*numbers(parts), parts.rest, parts.unjudged)]
    assert sum(map(len, sides)) == 60
    assert sum(map(len, numbers(parts))) == pytest.approx(300, abs=60)
    assert [column.name for column in table.schema.columns] == ["a", "b", "c"]


def test_rows_of_few_categories_are_equal_by_chance(write_table: WriteTable) -> None:
    dice = random.Random(1)
    rows = [[dice.choice("abc"), dice.choice("xyz"), dice.choice("01")] for _ in range(ROWS)]
    assert keep_together(read_table(write_table(table_of("a,b,y", rows)), "y")).groups is None


def test_rows_in_time_are_judged_on_the_latest_in_every_part_and_fold(write_table: WriteTable) -> None:
    dice = random.Random(1)
    lines = walk(dice).splitlines()
    body = lines[1:]
    dice.shuffle(body)
    table, parts = parts_of(write_table("\n".join([lines[0], *body]) + "\n"), TableOptions(time="day"))
    days = table.frame["day"]
    assert days.is_monotonic_increasing
    ends = [(days.iloc[rows].min(), days.iloc[rows].max()) for rows in numbers(parts)]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))
    for train, test in make_folds(table.schema, table.frame["y"].to_numpy(), None, 4, 7):
        assert train.max() < test.min()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (TableOptions(group="customer", time="a"), "name one of them"),
        (TableOptions(group="custommer"), "do you mean 'customer'"),
        (TableOptions(time="customer"), "--time customer: this column holds neither dates nor numbers"),
        (TableOptions(group="y"), "'y' is the column to predict"),
    ],
)
def test_a_group_or_a_time_that_cannot_be_is_refused(options: TableOptions, said: str, write_table: WriteTable) -> None:
    path = write_table(customers(random.Random(1)))
    with pytest.raises(TableInvalid, match=said):
        read_table(path, "y", options=options)


def test_a_clean_table_is_left_in_peace(write_table: WriteTable) -> None:
    """Ordinary tables, in which each city has another price, or which stand in the order of a column."""
    warned = 0
    for seed in range(10):
        dice = random.Random(seed)
        prices = {f"city{number}": dice.gauss(0, 1) for number in range(25)}
        rows = []
        for _ in range(300):
            a, b, city = dice.random(), dice.random(), dice.choice([*prices])
            rows.append([f"{a:.4f}", f"{b:.4f}", city, f"{3 * a - b + prices[city] + dice.gauss(0, 0.3):.3f}"])
        rows = sorted(rows) if seed % 2 else rows
        warned += "warning:" in notes_of(write_table(table_of("a,b,city,y", rows)))
    assert warned <= 1


def features_of(table: Table, rows: Rows) -> Any:
    return np.column_stack([as_numbers(table.frame[one.name].iloc[rows], one) for one in table.schema.columns])


@pytest.mark.parametrize("seed", range(2))
def test_what_is_claimed_of_groups_is_true_of_others(seed: int, write_table: WriteTable) -> None:
    """The error on the untouched part is near that on customers whom the table does not have."""
    dice = random.Random(seed)
    table, parts = parts_of(write_table(customers(dice)), TableOptions(group="customer"), 1)
    train = np.concatenate([parts.train, parts.held_out])
    labels = table.frame["y"].to_numpy()
    others = read_table(write_table(customers(random.Random(100 + seed))), "y", options=TableOptions(group="customer"))
    model = HistGradientBoostingRegressor(max_iter=40, random_state=0).fit(features_of(table, train), labels[train])
    judged = parts.untouched[0]
    claimed = mean_squared_error(labels[judged], model.predict(features_of(table, judged)))
    true = mean_squared_error(others.frame["y"], model.predict(features_of(others, np.arange(len(others.frame)))))
    assert claimed > 0.5 * true, "split at random it is a hundredth of it"

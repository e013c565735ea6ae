"""The parts of a table are disjoint, stratified and the same for the same seed."""

from pathlib import Path

import numpy as np
import pytest

from apc_automl.data.split import Parts, split_rows
from apc_automl.data.table import Table, read_table
from apc_automl.run.form import DEFAULT_TARGET


@pytest.fixture(scope="module")
def table(default_table: Path) -> Table:
    return read_table(default_table, DEFAULT_TARGET)


def all_rows(parts: Parts) -> list[int]:
    return [int(row) for part in (parts.train, parts.held_out, *parts.untouched) for row in part]


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_no_row_is_in_two_parts_and_none_is_lost(table: Table, rounds: int) -> None:
    parts = split_rows(table, 7, rounds, 6000)
    assert len(parts.untouched) == rounds
    assert sorted(all_rows(parts)) == list(range(len(table.frame)))


def test_every_part_has_the_classes_in_their_shares(table: Table) -> None:
    parts = split_rows(table, 7, 2, 6000)
    labels = table.frame[DEFAULT_TARGET].to_numpy()
    whole = (labels == "benign").mean()
    for rows in (parts.train, parts.held_out, *parts.untouched):
        assert abs((labels[rows] == "benign").mean() - whole) < 0.05


def test_the_seed_decides(table: Table) -> None:
    assert all_rows(split_rows(table, 7, 2, 6000)) == all_rows(split_rows(table, 7, 2, 6000))
    assert all_rows(split_rows(table, 7, 2, 6000)) != all_rows(split_rows(table, 8, 2, 6000))


def test_of_a_large_table_the_search_sees_a_sample_and_no_row_is_lost(table: Table) -> None:
    parts = split_rows(table, 7, 2, 200)
    assert len(all_rows(parts)) == pytest.approx(200, abs=4)
    others = [int(row) for row in (*parts.rest, *parts.unjudged)]
    assert sorted([*all_rows(parts), *others]) == list(range(len(table.frame)))
    whole = split_rows(table, 7, 2, 6000)
    assert set(parts.untouched[0]) <= set(whole.untouched[0]), "it is split before it is sampled"
    assert set(parts.rest) <= {*whole.train, *whole.held_out}


def test_regression_parts_have_the_same_distribution(diabetes_table: Path) -> None:
    table = read_table(diabetes_table, "target")
    parts = split_rows(table, 7, 2, 6000)
    labels = table.frame["target"].to_numpy()
    for rows in (parts.held_out, *parts.untouched):
        assert abs(np.median(labels[rows]) - np.median(labels[parts.train])) < 15

"""Fifty tables of strangers are read as they were meant, or a warning names the column."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from tests.apps.automl.data.strangers import Cell, Column, Stranger, make_stranger

from apc_automl.data.columns import ReadColumn, read_columns
from apc_automl.data.source import read_source
from apc_automl.data.table_schema import ColumnKind, TableOptions

TABLES = 50
READ_RIGHT = 0.995
WARNINGS = 0.1
"""Of the tables, at most, in which nothing is odd."""
CLEAN = ("none", "sorted", "gaps", "trailing", "sep")


def cells(read: ReadColumn) -> Iterator[Cell]:
    """Yield what the cells are read as."""
    for cell in read.values:
        if cell is None or cell != cell:
            yield None
        elif read.kind is ColumnKind.DATE:
            yield pd.to_datetime(cell, format=read.date_format).date()
        else:
            yield cell


def wrong(column: Column, read: ReadColumn) -> int:
    """Return how many cells are not what they were meant to be."""
    kinds = {"number": ColumnKind.NUMERIC, "date": ColumnKind.DATE, "text": None}
    if read.kind is not kinds[column.kind]:
        return len(column.truth)
    return sum(found != meant for found, meant in zip(cells(read), column.truth, strict=True))


def read(stranger: Stranger, folder: Path) -> dict[str, ReadColumn]:
    path = folder / "table.csv"
    path.write_bytes(stranger.data)
    source = read_source(path)
    return read_columns(source.frame, source.separator, TableOptions())


def test_every_cell_is_read_right_or_its_column_is_named(tmp_path: Path) -> None:
    lost, silent, whole = [], [], 0
    for seed in range(TABLES):
        stranger = make_stranger(seed)
        found = read(stranger, tmp_path)
        for column in stranger.columns:
            whole += len(column.truth)
            count = wrong(column, found[column.name])
            lost += [(stranger.name, column.name, column.written[:3])] * count
            if count and not any(note.startswith("warning: ") for note in found[column.name].notes):
                silent.append((stranger.name, column.name, column.written[:3]))
    assert silent == []
    assert 1 - len(lost) / whole >= READ_RIGHT, sorted({str(one) for one in lost})


def test_few_clean_tables_have_warnings_and_each_names_its_column(tmp_path: Path) -> None:
    clean, warned = 0, []
    for seed in range(2 * TABLES):
        stranger = make_stranger(seed)
        if stranger.name.partition(", ")[2] not in CLEAN:
            continue
        clean += 1
        notes = [
            (name, note)
            for name, one in read(stranger, tmp_path).items()
            for note in one.notes
            if note.startswith("warning:")
        ]
        assert all(f"column {name!r}" in note for name, note in notes)
        warned += [(stranger.name, notes)] if notes else []
    assert clean > TABLES / 2
    assert len(warned) <= WARNINGS * clean, warned


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_gives_the_same_table(seed: int) -> None:
    assert make_stranger(seed).data == make_stranger(seed).data

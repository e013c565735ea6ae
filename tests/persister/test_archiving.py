"""Rows of a segment in the order of their object, however many and wide they are."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from apc_persister.archiving import sorted_groups

NAMES = st.one_of(st.none(), st.text("aäb\U0001f600", max_size=3))


def write(path: Path, names: list[str | None], width: int = 0) -> pa.Table:
    columns = {"name": names, "seq": list(range(len(names))), "body": [bytes(width)] * len(names)}
    schema = pa.schema([("name", pa.string()), ("seq", pa.int64()), ("body", pa.binary())])
    table = pa.Table.from_pydict(columns, schema=schema)
    pq.write_table(table, path, row_group_size=7 if width == 0 else None)
    return table


@settings(max_examples=60)
@given(names=st.lists(NAMES, max_size=40), size=st.integers(1, 12), most_bytes=st.integers(1, 40))
def test_rows_come_in_the_order_of_their_columns(names: list[str | None], size: int, most_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.rows"
        table = write(path, names)
        groups = list(sorted_groups(path, ["name", "seq"], size, most_bytes))
        assert list(path.parent.iterdir()) == [path], "no file of a group is left"
    wanted = sorted(table.to_pylist(), key=lambda row: (row["name"] is None, (row["name"] or "").encode(), row["seq"]))
    assert [row for group in groups for row in group.to_pylist()] == wanted
    for group in groups:
        bytes_of_texts = sum(len((name or "").encode()) for name in group["name"].to_pylist())
        assert 0 < len(group) <= size and (len(group) == 1 or bytes_of_texts < most_bytes + 12)


def test_rows_that_are_wider_than_memory_are_held_group_by_group(tmp_path: Path) -> None:
    """DuckDB's sort ended with an error on 2^20 entries, however many files it was given."""
    count, size, width = 20_000, 500, 4_000
    path = tmp_path / "table.rows"
    write(path, [str(place * 7919 % 1000) for place in range(count)], width)
    before, most = pa.total_allocated_bytes(), 0
    for _ in sorted_groups(path, ["name", "seq"], count, size * width):
        most = max(most, pa.total_allocated_bytes() - before)
    assert 0 < most < 4 * size * width < count * width / 8

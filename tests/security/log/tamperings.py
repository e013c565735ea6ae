"""Random tamperings with the tables of the log, as a superuser makes them who has lifted every guard."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random

import asyncpg

from apc_log.heads import AnyConnection

_COLUMNS = """
SELECT relname AS table_name, attname AS column_name, format_type(atttypid, NULL) AS type, attgenerated <> '' AS derived
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE relnamespace = 'apc_log'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
  AND attnum > 0 AND NOT attisdropped
ORDER BY relname, attnum
"""
_CONSTRAINTS = "SELECT conname FROM pg_constraint WHERE conrelid = $1::regclass AND contype IN ('p', 'u', 'c')"
_NOT_NULL = """
SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND attnotnull AND NOT attisdropped
"""
_OTHER: Mapping[str, tuple[str, ...]] = {
    "integer": ("{0} + 1", "{0} - 1", "-{0} - 1", "2147483647", "NULL"),
    "smallint": ("{0} + 1", "0", "NULL"),
    "bigint": ("{0} + 1", "{0} - 1", "{0} + 10", "-{0} - 1", "9007199254740993", "9223372036854775807", "NULL"),
    "text": ("{0} || 'x'", "''", "reverse({0})", "upper({0})", "NULL"),
    "uuid": ("gen_random_uuid()", "NULL"),
    "boolean": ("NOT {0}", "NULL"),
    "double precision": ("{0} + 0.0625", "'NaN'", "'-Infinity'", "1e300", "NULL"),
    "timestamp with time zone": ("{0} + interval '1 microsecond'", "'infinity'", "'0044-03-15 BC'", "NULL"),
    "date": ("{0} + 1", "{0} - 1", "'infinity'", "'0044-03-15 BC'", "NULL"),
    "bytea": (
        "set_byte({0}, 0, 255 - get_byte({0}, 0))", "'\\x'", "{0} || '\\x00'", "substring({0} FROM 2)", "NULL",
    ),
    "jsonb": (
        "jsonb_build_object('was', {0})", "'[]'", "'null'", "'1e400'", "NULL",
        "(repeat('[', 2000) || repeat(']', 2000))::jsonb",
    ),
    "tsvector": ("{0} || to_tsvector('simple', 'x')", "''", "NULL"),
    "text[]": ("{0} || 'x'", "'{{}}'", "ARRAY[NULL]::text[]", "ARRAY[{0}, {0}]", "NULL"),
    "timestamp with time zone[]": ("{0} || now()", "'{{infinity}}'", "ARRAY[NULL]::timestamptz[]", "'{{}}'", "NULL"),
    "bytea[]": ("{0} || '\\x00'::bytea", "'{{}}'", "ARRAY[NULL]::bytea[]", "ARRAY[{0}, {0}]", "{0}[2:]", "NULL"),
}  # fmt: skip
"""Type of a column -> other values that it may get."""


@dataclass(frozen=True)
class Tampering:
    """What was done, and to which column if it was one; None = whole rows."""

    text: str
    table: str
    column: str | None


@dataclass(frozen=True)
class _Column:
    name: str
    type: str
    is_derived: bool


class Tamperer:
    """Does something to the log in the transaction that is open, by chance."""

    def __init__(self, connection: AnyConnection, tables: Mapping[str, list[_Column]], random: Random) -> None:
        self._connection = connection
        self._tables = tables
        self._random = random

    @classmethod
    async def open(cls, connection: AnyConnection, random: Random) -> "Tamperer":
        """Knows every table of the log. Raises AssertionError for a type of column that has no other values here."""
        tables: dict[str, list[_Column]] = {}
        for row in await connection.fetch(_COLUMNS):
            assert row["type"] in _OTHER, f"{row['table_name']}.{row['column_name']}: add other values of {row['type']}"
            tables.setdefault(row["table_name"], []).append(_Column(row["column_name"], row["type"], row["derived"]))
        return cls(connection, tables, random)

    async def tamper(self, only: str | None = None) -> Tampering:
        """Do one thing that changes something, with this table if one is named."""
        while True:
            table = only or self._random.choice(sorted(self._tables))
            acts = (self._change, self._change, self._change, self._delete, self._cut, self._insert, self._swap)
            tampering = await self._try(self._random.choice(acts), table)
            if tampering is not None:
                return tampering

    async def _try(self, act: Callable[[str], Awaitable[Tampering | None]], table: str) -> Tampering | None:
        """Do it; where a constraint is in the way, take the constraints off first."""
        state = self._random.getstate()
        try:
            async with self._connection.transaction():
                return await act(table)
        except asyncpg.IntegrityConstraintViolationError:
            self._random.setstate(state)
        except (asyncpg.DataError, asyncpg.StatementTooComplexError):
            return None  # no value of this type
        await self._loosen(table)
        try:
            async with self._connection.transaction():
                return await act(table)
        except asyncpg.IntegrityConstraintViolationError:  # a unique index that is no constraint
            return None

    async def _loosen(self, table: str) -> None:
        for (name,) in await self._connection.fetch(_CONSTRAINTS, f"apc_log.{table}"):
            await self._connection.execute(f'ALTER TABLE apc_log.{table} DROP CONSTRAINT "{name}" CASCADE')
        for (name,) in await self._connection.fetch(_NOT_NULL, f"apc_log.{table}"):
            await self._connection.execute(f"ALTER TABLE apc_log.{table} ALTER COLUMN {name} DROP NOT NULL")

    async def _change(self, table: str) -> Tampering | None:
        column = self._random.choice(self._tables[table])
        value = self._random.choice(_OTHER[column.type]).format(column.name)
        row = await self._row(table)
        if row is None:
            return None
        if column.is_derived:
            await self._connection.execute(f"ALTER TABLE apc_log.{table} ALTER COLUMN {column.name} DROP EXPRESSION")
        done = await self._connection.execute(
            f"UPDATE apc_log.{table} SET {column.name} = {value} "
            f"WHERE ctid = $1 AND {column.name} IS DISTINCT FROM ({value})",
            row,
        )
        return Tampering(f"{table}.{column.name} = {value}", table, column.name) if done != "UPDATE 0" else None

    async def _delete(self, table: str) -> Tampering | None:
        row = await self._row(table)
        if row is None:
            return None
        await self._connection.execute(f"DELETE FROM apc_log.{table} WHERE ctid = $1", row)
        return Tampering(f"a row of {table} deleted", table, None)

    async def _cut(self, table: str) -> Tampering | None:
        """Rows in the middle, or the tail, or everything."""
        names = [column.name for column in self._tables[table]]
        order = next((name for name in ("seq", "tree_size", "index", "epoch") if name in names), None)
        if order is None:
            done = await self._connection.execute(f"DELETE FROM apc_log.{table}")
            return Tampering(f"{table} emptied", table, None) if done != "DELETE 0" else None
        last = await self._connection.fetchval(f"SELECT max({order}) FROM apc_log.{table}") or 0
        first = self._random.randint(1, last + 1)
        width = self._random.choice((10, 500, last))
        done = await self._connection.execute(
            f"DELETE FROM apc_log.{table} WHERE {order} BETWEEN $1 AND $2", first, first + width
        )
        return Tampering(f"{table} cut from {first}, {width} wide", table, None) if done != "DELETE 0" else None

    async def _insert(self, table: str) -> Tampering | None:
        """Return a row once more: exactly, or with another number."""
        row = await self._row(table)
        if row is None:
            return None
        columns = [column for column in self._tables[table] if not column.is_derived]
        values = [column.name for column in columns]
        numbers = [place for place, column in enumerate(columns) if column.type in ("integer", "bigint")]
        what = "the same"
        if numbers and self._random.random() < 0.6:
            place = self._random.choice(numbers)
            values[place] = self._random.choice(_OTHER[columns[place].type][:-1]).format(values[place])
            what = values[place]
        names = ", ".join(column.name for column in columns)
        await self._connection.execute(
            f"INSERT INTO apc_log.{table} ({names}) SELECT {', '.join(values)} FROM apc_log.{table} WHERE ctid = $1",
            row,
        )
        return Tampering(f"a row of {table} inserted, {what}", table, None)

    async def _swap(self, table: str) -> Tampering | None:
        """Return a column of two rows."""
        column = self._random.choice([column for column in self._tables[table] if not column.is_derived])
        one, two = await self._row(table), await self._row(table)
        if one is None or one == two:
            return None
        done = await self._connection.execute(
            f"UPDATE apc_log.{table} AS here SET {column.name} = other.{column.name} FROM apc_log.{table} AS other "
            f"WHERE (here.ctid, other.ctid) IN (($1::tid, $2::tid), ($2::tid, $1::tid)) "
            f"AND here.{column.name} IS DISTINCT FROM other.{column.name} "
            # Of rows that are alike otherwise, only the place would change.
            f"AND to_jsonb(here) - '{column.name}' <> to_jsonb(other) - '{column.name}'",
            one,
            two,
        )
        return Tampering(f"{table}.{column.name} of two rows swapped", table, column.name) if done[-1] != "0" else None

    async def _row(self, table: str) -> tuple[int, int] | None:
        """Return the place of some row."""
        count = await self._connection.fetchval(f"SELECT count(*) FROM apc_log.{table}")
        if not count:
            return None
        offset = self._random.randrange(count)
        place: tuple[int, int] = await self._connection.fetchval(
            f"SELECT ctid FROM apc_log.{table} ORDER BY ctid OFFSET $1 LIMIT 1", offset
        )
        return place

"""The canonical bytes of an entry: the same from the row that is about to be stored as from the stored row."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import orjson
import pytest
import rfc8785
from asyncpg.pool import PoolConnectionProxy
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.log import packet_entry

from apc_bus.database import open_pool
from apc_log.batch import (
    ConflictEntry,
    CoordinationEntry,
    Entry,
    HopEntry,
    LineageEntry,
    PacketEntry,
    RegistryEntry,
)
from apc_log.entries import KINDS, canonical_value
from apc_log.heads import AnyConnection
from apc_log.offline_verifier import COLUMNS, CheckFailed, parse_entry
from apc_persister.evidence.rows import prepare_reader, read_entries, read_leaves
from apc_persister.intake import BatchIntake, Head
from apc_persister.transaction import ENTRY_ERRORS, store
from apc_persister.writer import drop_connection, take_connection

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
UUIDS = st.uuids().map(lambda value: UUID(str(value)))
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)) | st.just(
    datetime(2026, 1, 1, tzinfo=UTC)
)
BYTES = st.binary(max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
JSON = st.dictionaries(TEXTS, VALUES, max_size=3).map(lambda value: json.dumps(value, ensure_ascii=False).encode())
SMALL = st.integers(-(2**31), 2**31 - 1)


def entries() -> st.SearchStrategy[Entry]:
    """Entries of every kind, with values that a careless way through JSON or PostgreSQL changes."""
    hops = st.lists(st.tuples(TEXTS, TIMES), min_size=1, max_size=3)

    def hop(steps: list[tuple[str, datetime]], **values: Any) -> HopEntry:
        return HopEntry(events=[event for event, _ in steps], occurred_at=[time for _, time in steps], **values)

    def packet(created_at: datetime, confidence: float, facts: bytes, names: list[str], text: str) -> PacketEntry:
        made = packet_entry(session_id=text, recipients=names)
        values = {name: getattr(made, name) for name in PacketEntry.__struct_fields__}
        return PacketEntry(**{**values, "created_at": created_at, "confidence": confidence, "facts": facts})

    return st.one_of(
        st.builds(packet, TIMES, FLOATS, JSON, st.lists(TEXTS, max_size=2), TEXTS),
        st.builds(
            hop,
            hops,
            session_id=TEXTS,
            packet_id=UUIDS,
            recipient=TEXTS,
            attempt=SMALL,
            from_state=TEXTS,
            to_state=TEXTS,
            actor=TEXTS,
            metadata=st.none() | JSON,
        ),
        st.builds(
            LineageEntry,
            session_id=TEXTS,
            packet_id=UUIDS,
            protocol_id=TEXTS,
            parent_protocol_ids=st.lists(TEXTS, max_size=2),
            ancestor_swarms=st.lists(TEXTS, max_size=2),
            cross_use_case=st.booleans(),
            transfer_mode=TEXTS,
            from_swarm=st.none() | TEXTS,
            to_swarm=st.none() | TEXTS,
            sender_score=st.none() | FLOATS,
            receiver_score=st.none() | FLOATS,
        ),
        st.builds(
            CoordinationEntry,
            session_id=TEXTS,
            round=SMALL,
            generation=SMALL,
            step=SMALL,
            cause_packet_id=UUIDS,
            event=TEXTS,
            from_state=TEXTS,
            to_state=TEXTS,
            facts=JSON,
        ),
        st.builds(
            ConflictEntry,
            session_id=st.none() | TEXTS,
            packet_id=st.none() | UUIDS,
            kind=TEXTS,
            code=st.none() | TEXTS,
            reason=TEXTS,
            raw=BYTES,
            first_hash=st.none() | BYTES,
            second_hash=st.none() | BYTES,
            user_id=st.none() | TEXTS,
        ),
        st.builds(RegistryEntry, change_id=UUIDS, agent_id=TEXTS, change=JSON),
    )


@pytest.fixture
async def bench(postgres_url: str) -> AsyncIterator[PoolConnectionProxy]:
    pool = await open_pool(postgres_url, max_size=2)
    writer = await take_connection(pool, timedelta(seconds=20))
    yield writer
    await drop_connection(pool, writer)
    await pool.close()


def examples() -> list[list[Entry]]:
    """Some hundred batches, for one database and one event loop."""
    found: list[list[Entry]] = []

    @settings(max_examples=120, deadline=None)
    @given(st.lists(entries(), min_size=1, max_size=6))
    def collect(batch: list[Entry]) -> None:
        found.append(batch)

    collect()
    return found


async def test_a_stored_row_gives_the_leaf_that_was_computed_before(bench: PoolConnectionProxy) -> None:
    """Property: texts, numbers, JSON and times of every sort survive PostgreSQL, or the entry is refused before."""
    stored = refused = 0
    await prepare_reader(bench)
    for example in examples():
        transaction = bench.transaction()
        await transaction.start()
        now: datetime = await bench.fetchval("SELECT now()")
        intake = BatchIntake(Head(0), {}, {})
        intake.place(example, 1, 1, datetime(2026, 1, 1, tzinfo=UTC))
        try:
            async with bench.transaction():
                leaves = await store(bench, intake.placed, now)
        except ENTRY_ERRORS:
            refused += 1
        else:
            assert (await read_leaves(bench, 0, 1, len(example))).hashes == leaves, example
            await _check_bytes(bench, len(example))
            stored += 1
        await transaction.rollback()
    assert stored > refused


async def _check_bytes(connection: AnyConnection, count: int) -> None:
    """The bytes are RFC 8785's own, and an array of the documented columns."""
    async for seq, text, _ in read_entries(connection, 0, range(1, count + 1)):
        assert rfc8785.dumps(json.loads(text, parse_int=float)) == text
        entry = parse_entry(text)
        assert (entry.shard, entry.seq) == (0, seq)


@given(value=VALUES)
def test_canonical_values_are_those_of_the_reference(value: Any) -> None:
    made = canonical_value(value)
    text = b"null" if made is None else orjson.dumps(made)
    assert text == rfc8785.dumps(json.loads(json.dumps(value), parse_int=float))


async def test_every_column_of_the_tables_is_in_the_entry(postgres_url: str) -> None:
    """Who adds a column to the log must say whether it is evidence, and give the entry a new version."""
    connection = await asyncpg.connect(postgres_url)
    query = (
        "SELECT attname FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped "
        "AND attgenerated = ''"  # derived from others
    )
    for kind, table in KINDS.items():
        stored = {row[0] for row in await connection.fetch(query, f"apc_log.{table}")}
        known = {column for (name, _), columns in COLUMNS.items() if name == kind for column in columns}
        beside = {"shard", "seq", "entry_version"}
        assert stored - beside == {{"raw_hash": "raw"}.get(name, name) for name in known} | (
            {"body_stored"} if kind == "packet" else set()
        )
    await connection.close()


@pytest.mark.parametrize("text", [b"[" * 200_000, b'["packet",1,0,1,' + b"[" * 100_000 + b"]" * 100_001])
def test_an_entry_of_too_many_levels_is_none(text: bytes) -> None:
    with pytest.raises(CheckFailed, match="not an entry"):
        parse_entry(text)

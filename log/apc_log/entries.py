"""Entries of the log: the rows that those of a batch become, and the canonical bytes of a row with their hash.

The bytes are [kind, version, shard, seq, columns…] as JCS, made of nothing but the stored row. The persister makes them
of the rows that it is about to store, `verify` and `prove` of the rows that Postgres gives back: both are the same
bytes, whatever passes through PostgreSQL on the way. Columns by kind and version: `apc_log.offline_verifier.COLUMNS`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from operator import itemgetter
from typing import Any, NamedTuple

import orjson
import rfc8785
from msgspec.structs import astuple

from apc_log.batch import (
    ConflictEntry,
    CoordinationEntry,
    Entry,
    HopEntry,
    LineageEntry,
    PacketEntry,
    RegistryEntry,
)
from apc_log.body_encryption import is_sealed
from apc_log.offline_verifier import COLUMNS, leaf_hash

KINDS: Mapping[str, str] = {
    "packet": "agent_packets",
    "hop": "packet_events",
    "lineage": "packet_lineage",
    "coordination": "coordination_events",
    "conflict": "packet_conflicts",
    "registry": "registry_events",
    "log": "log_events",
}
"""kind -> table of schema apc_log."""
ENTRY_VERSION: Mapping[str, int] = {kind: max(v for k, v in COLUMNS if k == kind) for kind in KINDS}
"""The version that this release writes."""
BYTES_COLUMN: Mapping[str, tuple[str, str]] = {
    "packet": ("body_stored", "stored_hash"),
    "conflict": ("raw", "raw_hash"),
}
"""kind -> the column of bytes that stands in the entry by its SHA-256 alone, and the name of that hash there."""
WITHOUT_COLUMN = "raw_hash"
"""The one of these hashes that no table stores: a row is read with NULL in its place."""

JSON = frozenset({"facts", "refusal", "metadata", "change", "detail"})
NULLABLE_JSON = frozenset({"refusal", "metadata"})
"""Of those, the columns that may be NULL."""
FLOATS = frozenset({"confidence", "sender_score", "receiver_score"})
TIMES = frozenset({"recorded_at", "created_at", "expires_at", "judged_at"})
TIME_LISTS = frozenset({"occurred_at"})
HASHES = frozenset({"contract_hash", "stored_hash", "packet_hash", "first_hash", "second_hash", "raw_hash"})

_EXACT = len("2026-11-20T10:00:00.123456+00:00")
"""Of a stored time with all its digits. What is as long and is no such time (years before 1 and after 9999) is cut to a
text that is the canonical one of no time."""
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER | orjson.OPT_UTC_Z
# A number of orjson's that RFC 8785 writes otherwise: whole floats, exponents, integers of 16 digits and more, small
# fractions. It stands behind `:`, `[` or `,`; a string that looks like one costs the slow way, never a wrong byte.
_OTHER_NUMBER = re.compile(rb"[:\[,]-?(?:\d{16}|\d[\d.]*(?:e|\.0[,\]}])|0\.0000)")
_BEYOND_BASIC_PLANE = re.compile(rb"[\xf0-\xf4]")  # keys beyond it sort otherwise


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the columns that need care stand in the values of an entry, after kind, version, shard and seq."""

    columns: tuple[str, ...]
    json: tuple[int, ...]
    floats: tuple[int, ...]
    times: tuple[int, ...]
    time_lists: tuple[int, ...]
    hashes: tuple[int, ...]


def _layout(columns: tuple[str, ...]) -> Layout:
    def places(names: frozenset[str]) -> tuple[int, ...]:
        return tuple(place for place, name in enumerate(columns, 4) if name in names)

    return Layout(columns, places(JSON), places(FLOATS), places(TIMES), places(TIME_LISTS), places(HASHES))


LAYOUTS: Mapping[tuple[str, int], Layout] = {key: _layout(columns) for key, columns in COLUMNS.items()}


def canonical_value(value: Any) -> orjson.Fragment | None:
    """Return a JSON value in its canonical form, numbers as IEEE doubles (RFC 8785).

    None stays None, which is SQL's NULL.

    Raises ValueError or TypeError when it has none: NaN, infinity, a lone surrogate.
    """
    if value is None:
        return None
    try:
        text = orjson.dumps(value, option=_OPTIONS)
    except orjson.JSONEncodeError:  # an integer beyond 2^53, or worse
        return _by_reference(value)
    if _OTHER_NUMBER.search(b"[" + text + b"]") or (not text.isascii() and _BEYOND_BASIC_PLANE.search(text)):
        return _by_reference(value)
    return orjson.Fragment(text)


def _by_reference(value: Any) -> orjson.Fragment:
    try:
        return orjson.Fragment(rfc8785.dumps(_as_doubles(value)))
    except RecursionError as error:
        raise ValueError("nested too deep for a canonical form") from error


def _as_doubles(value: Any) -> Any:
    """Return the same value, integers beyond 2^53 as the doubles that they are in JSON."""
    match value:
        case dict():
            return {key: _as_doubles(item) for key, item in value.items()}
        case list() | tuple():
            return [_as_doubles(item) for item in value]
        case int() if abs(value) >= 1 << 53:
            return float(value)
        case _:
            return value


def _canonical_float(value: float | None) -> Any:
    if value is None or (1e-4 <= value < 1e15 and value % 1):
        return value
    return orjson.Fragment(rfc8785.dumps(value))


def _time_text(value: datetime) -> str:
    """Return RFC 3339 in UTC, always with microseconds."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f").rjust(26, "0") + "Z"


def leaf_maker(kind: str, table_columns: Sequence[str], recorded_at: datetime) -> Callable[[tuple[Any, ...]], bytes]:
    """Return what makes the leaf hash of a row of this kind that is about to be stored, its columns in that order.

    The maker raises ValueError, TypeError or LookupError for a row that has no canonical form.
    """
    version = ENTRY_VERSION[kind]
    layout = LAYOUTS[kind, version]
    if kind in BYTES_COLUMN and BYTES_COLUMN[kind][1] not in table_columns:
        raw, name = BYTES_COLUMN[kind]
        raw_place = layout.columns.index(name) + 4
        names = [raw if column == name else column for column in layout.columns]
    else:
        raw_place, names = None, list(layout.columns)
    places = [table_columns.index(name) if name != "recorded_at" else 0 for name in names]
    pick = itemgetter(0, 1, *places)  # shard, seq, and the columns
    recorded = layout.columns.index("recorded_at") + 4
    recorded_text = _time_text(recorded_at)
    times = tuple(place for place in layout.times if place != recorded)

    def make(row: tuple[Any, ...]) -> bytes:
        # orjson writes a time in UTC as `_time_text` does, unless there are no microseconds: it leaves them out.
        values = [kind, version, *pick(row)]
        values[recorded] = recorded_text
        if raw_place is not None:
            values[raw_place] = sha256(values[raw_place]).digest()
        for place in layout.json:
            if values[place] is not None:
                values[place] = canonical_value(orjson.loads(values[place]))
        for place in layout.floats:
            values[place] = _canonical_float(values[place])
        for place in times:
            time = values[place]
            if not time.microsecond or time.tzinfo is not UTC:
                values[place] = _time_text(time)
        for place in layout.time_lists:
            for time in values[place]:
                if not time.microsecond or time.tzinfo is not UTC:
                    values[place] = [_time_text(time) for time in values[place]]
                    break
        for place in layout.hashes:
            if values[place] is not None:
                values[place] = values[place].hex()
        return leaf_hash(orjson.dumps(values, option=_OPTIONS))

    return make


def stored_entry(text: str, raw: bytes | None) -> bytes:
    """Return the canonical bytes of a row as `apc_persister.evidence.rows` selects it.

    `raw` is the row's column of bytes, whose hash goes into the entry. An altered row gives other bytes; one that the
    writer cannot have stored (a body that does not fit its hash, a number that is none) gives bytes that fit no leaf.
    """
    values = orjson.loads(text)
    kind = values[0]
    layout = LAYOUTS[kind, values[1]]
    if kind in BYTES_COLUMN:
        if raw is None:
            raise ValueError(f"the bytes of entry {values[3]} are missing")
        name = BYTES_COLUMN[kind][1]
        _put_hash(values, layout.columns.index(name) + 4, raw, is_stored=name != WITHOUT_COLUMN)
    for place in layout.json:
        if values[place] is not None:
            values[place] = canonical_value(values[place])
    for place in layout.floats:
        value = values[place]
        values[place] = _canonical_float(value) if isinstance(value, float) else canonical_value(value)
    for place in layout.times:
        values[place] = _stored_time(values[place])
    for place in layout.time_lists:
        values[place] = [time[:26] + "Z" if len(time) == _EXACT else _stored_time(time) for time in values[place]]
    return orjson.dumps(values, option=_OPTIONS)


def _put_hash(values: list[Any], place: int, raw: bytes, *, is_stored: bool) -> None:
    digest = sha256(raw).hexdigest()
    if values[place] != (digest if is_stored else None):
        digest = f"{digest} is not {values[place]}"
    values[place] = digest


def _stored_time(text: str) -> str:
    """Read a time such as `2026-11-20T10:00:00.12+00:00`: PostgreSQL omits trailing zeros."""
    if len(text) == _EXACT:
        return text[:26] + "Z"
    if text[19:20] == "." and text.endswith("+00:00"):
        return text[:-6].ljust(26, "0") + "Z"
    return _time_text(datetime.fromisoformat(text))


# From the entries of a log batch to rows: which table an entry goes to, and its columns.

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class LogTable:
    """A table of schema apc_log and the columns that the persister fills, in the order of its rows."""

    name: str
    columns: tuple[str, ...]


class Placed(NamedTuple):
    """An entry with its place in the log."""

    place: tuple[int, int, int, int]
    """shard, seq, epoch, batch_no."""
    judged_at: datetime
    entry: Entry


_PLACE = ("shard", "seq", "epoch", "batch_no")
_LAST = ("entry_version",)
_BEFORE_BODY = PacketEntry.__struct_fields__.index("body")
_LIKE_ENTRY = PacketEntry.__struct_fields__[:_BEFORE_BODY]

AGENT_PACKETS = LogTable(
    "agent_packets",
    (
        *_PLACE,
        "judged_at",
        *_LIKE_ENTRY,
        "refusal_code",
        "body_stored",
        "stored_hash",
        "packet_hash",
        "user_id",
        "signature",
        *_LAST,
    ),
)
PACKET_IDS = LogTable("packet_ids", ("session_id", "packet_id", "packet_hash", "payload_hash", "shard", "seq"))
PACKET_EVENTS = LogTable("packet_events", (*_PLACE, *HopEntry.__struct_fields__, *_LAST))
PACKET_LINEAGE = LogTable("packet_lineage", (*_PLACE, *LineageEntry.__struct_fields__, *_LAST))
COORDINATION_EVENTS = LogTable("coordination_events", (*_PLACE, *CoordinationEntry.__struct_fields__, *_LAST))
PACKET_CONFLICTS = LogTable("packet_conflicts", (*_PLACE, *ConflictEntry.__struct_fields__, *_LAST))
REGISTRY_EVENTS = LogTable("registry_events", (*_PLACE, *RegistryEntry.__struct_fields__, *_LAST))

KIND_OF: Mapping[LogTable, str] = {
    AGENT_PACKETS: "packet",
    PACKET_EVENTS: "hop",
    PACKET_LINEAGE: "lineage",
    COORDINATION_EVENTS: "coordination",
    PACKET_CONFLICTS: "conflict",
    REGISTRY_EVENTS: "registry",
}
"""Table -> kind of its entries; table packet_ids has none."""
_PACKET_VERSION = ENTRY_VERSION["packet"]

Rows = dict[LogTable, list[Row]]


def rows_of(placed: Iterable[Placed]) -> Rows:
    """Return the rows of these entries, by table. Raises ValueError or LookupError on a refusal that is no JSON."""
    rows: Rows = {}
    for item in placed:
        _ADD[type(item.entry)](rows, item)
    return rows


def leaves_of(rows: Rows, recorded_at: datetime) -> list[bytes]:
    """Return the leaf hashes of these rows in the order of their numbers. Raises one of ENTRY_ERRORS of the store."""
    numbered: list[tuple[int, bytes]] = []
    for table, kind in KIND_OF.items():
        if table in rows:
            make = leaf_maker(kind, table.columns, recorded_at)
            numbered += [(row[1], make(row)) for row in rows[table]]
    numbered.sort()
    return [leaf for _, leaf in numbered]


def _add_packet(rows: Rows, item: Placed) -> None:
    entry = item.entry
    assert isinstance(entry, PacketEntry)
    shard, seq, _, _ = item.place
    refusal_code = None if entry.refusal is None else orjson.loads(entry.refusal)["code"]
    # Stored as received, the bytes have to fit the gate's packet_hash (a CHECK of the table); sealed ones
    # have their own hash.
    stored_hash = sha256(entry.body).digest() if is_sealed(entry.body) else entry.packet_hash
    rows.setdefault(AGENT_PACKETS, []).append(
        (
            *item.place,
            item.judged_at,
            *astuple(entry)[:_BEFORE_BODY],
            refusal_code,
            entry.body,
            stored_hash,
            entry.packet_hash,
            entry.user_id,
            entry.signature,
            _PACKET_VERSION,
        )
    )
    rows.setdefault(PACKET_IDS, []).append(
        (entry.session_id, entry.packet_id, entry.packet_hash, entry.payload_hash, shard, seq)
    )


def _adder(table: LogTable) -> Callable[[Rows, Placed], None]:
    version = (ENTRY_VERSION[KIND_OF[table]],)

    def add(rows: Rows, item: Placed) -> None:
        rows.setdefault(table, []).append(item.place + astuple(item.entry) + version)

    return add


_ADD: dict[type[Entry], Callable[[Rows, Placed], None]] = {
    PacketEntry: _add_packet,
    HopEntry: _adder(PACKET_EVENTS),
    LineageEntry: _adder(PACKET_LINEAGE),
    CoordinationEntry: _adder(COORDINATION_EVENTS),
    ConflictEntry: _adder(PACKET_CONFLICTS),
    RegistryEntry: _adder(REGISTRY_EVENTS),
}

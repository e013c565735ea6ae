"""From the entries of a log batch to rows: which table an entry goes to, and its columns."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

import orjson
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
from apc_log.entries import ENTRY_VERSION, leaf_maker

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class LogTable:
    """A table of schema apc_log and the columns that the writer fills, in the order of its rows."""

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
    found: list[tuple[int, bytes]] = []
    for table, kind in KIND_OF.items():
        if table in rows:
            make = leaf_maker(kind, table.columns, recorded_at)
            found += [(row[1], make(row)) for row in rows[table]]
    found.sort()
    return [leaf for _, leaf in found]


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

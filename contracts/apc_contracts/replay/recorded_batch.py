"""The entries of one log batch during a replay: the next expected one, and where it differs."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from apc_contracts.replay.entries import Entry, RecordedHop, RecordedPacket
from apc_contracts.replay.errors import ReplayDiffers
from apc_contracts.session import FinalVerdict
from apc_contracts.session.delivery.retries import planned_at
from apc_contracts.vocabulary import ORCHESTRATOR

NOTHING = "nothing"

EntryT = TypeVar("EntryT", bound=Entry)


class RecordedBatch:
    """A session's entries of one batch, in the order of the log, and the position of the replay."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self.position = 0

    @property
    def current(self) -> Entry | None:
        """Return the next entry; None at the end."""
        return self._entries[self.position] if self.position < len(self._entries) else None

    def next(self, kind: type[EntryT], wanted: str) -> EntryT:
        """Return the next entry.

        Raises:
            ReplayDiffers: it is of another kind than expected, or there is none.
        """
        entry = self.current
        if entry is None:
            differ(self._entries[-1], "the entries that follow in its batch", NOTHING, wanted)
        if not isinstance(entry, kind):
            differ(entry, entry.table, f"an entry of {entry.table}", wanted)
        self.position += 1
        return entry

    def decay_of(self, final: FinalVerdict) -> RecordedPacket | None:
        """Return the next entry if it records a protocol's block or recovery caused by this verdict."""
        entry = self.current
        if not isinstance(entry, RecordedPacket) or "decay" not in entry.facts:
            return None
        return entry if entry.envelope["parent_packet_id"] == final.packet.packet_id else None

    def decayed(self) -> frozenset[str]:
        """Return the blocked protocols in the recorded rulings of the current input: only the ledger knows them all."""
        found: set[str] = set()
        for entry in self._entries[self.position :]:
            if isinstance(entry, RecordedPacket):
                if entry.envelope["sender_agent_id"] != ORCHESTRATOR:
                    break
            elif isinstance(entry, RecordedHop):
                found.update((entry.metadata or {}).get("facts", {}).get("decayed", ()))
        return frozenset(found)

    def judged_at(self) -> datetime | None:
        """Return the time at which all inputs of the batch were judged.

        Packets carry it; without a packet it is in the gate's own hops, or in the due time of a retry. If there is none
        of these, nothing depends on it.
        """
        for entry in self._entries:
            if isinstance(entry, RecordedPacket):
                return entry.judged_at
        for entry in self._entries:
            if isinstance(entry, RecordedHop) and entry.actor == ORCHESTRATOR and entry.occurred_at:
                return entry.occurred_at[-1]
        for entry in self._entries:
            if isinstance(entry, RecordedHop) and "retry" in (entry.metadata or {}):
                return planned_at(dict(entry.metadata or {})["retry"])
        return None


def compare(entry: Entry, column: str, recorded: Any, recomputed: Any) -> None:
    """Raise ReplayDiffers when the recomputed column differs from the recorded one."""
    if recorded != recomputed:
        differ(entry, f"{entry.table}.{column}", recorded, recomputed)


def differ(entry: Entry, what: str, recorded: Any, recomputed: Any) -> NoReturn:
    """Raise ReplayDiffers at this entry."""
    raise ReplayDiffers(entry.shard, entry.seq, what, recorded, recomputed)

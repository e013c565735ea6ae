"""Altered traffic of apc/1.0: every entry is the one that was made before contracts had names.

`altered-1.0.txt` holds the digests of the code that recorded the traffic: a line for each lease, and in it a digest for
each ten alterations. All of it is 99,856 packets, a third of them refused.
"""

import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace
from tests.orchestrator.judging.altered_traffic import Step, altered
from tests.orchestrator.judging.test_recorded_traffic import Gate, leases

from apc_contracts.vocabulary import PRESENCE_SESSION
from apc_log.batch import ConflictEntry, Entry, HopEntry, PacketEntry, decode_batch, encode

DIGESTS = Path(__file__).parent / "altered-1.0.txt"
ALTERATIONS = 10
"""Alterations a digest."""
NEW_WORDS = re.compile(r"(?<=^SCHEMA_INVALID at )([^:]*):.*", re.DOTALL)
"""What a reader would accept instead: types, signals and versions have been added to it."""
OTHER_ON_PURPOSE = {("a search of the reference swarm", 257)}
"""An expired START whose id is not derived from its sender's keys: such a refusal has taken no id since 0c2ea5e2."""


def entries_of(steps: list[Step], number: int) -> Iterator[bytes]:
    """Yield each log batch of an altered lease, without the documents of its sessions."""
    gate = Gate(steps[0])
    present: set[UUID] = set()
    for step in altered(steps, number)[1:]:
        if step["op"] != "sealed":
            gate.take(step)
        elif gate.batch is not None:
            batch = decode_batch(gate.sealed())
            rows = [replace(row, document=b"") for row in batch.sessions]
            entries = [without_new_words(one) for one in without_repeated_presence(batch.entries, present)]
            yield encode(replace(batch, entries=entries, sessions=rows))


def without_repeated_presence(entries: Iterable[Entry], present: set[UUID]) -> Iterator[Entry]:
    """Leave out what the gate once made of a HEARTBEAT that came again: the log writer refused it as known."""
    repeated: set[UUID] = set()
    for entry in entries:
        match entry:
            case ConflictEntry(session_id=session_id, code="DUPLICATE_CONFLICT") if session_id == PRESENCE_SESSION:
                continue
            case PacketEntry(session_id=session_id, packet_id=packet_id) if session_id == PRESENCE_SESSION:
                (repeated if packet_id in present else present).add(packet_id)
        if not (isinstance(entry, PacketEntry | HopEntry) and entry.packet_id in repeated):
            yield entry


def without_new_words(entry: Entry) -> Entry:
    if isinstance(entry, ConflictEntry):
        return replace(entry, reason=NEW_WORDS.sub(r"\1", entry.reason))
    return entry


def digest(steps: list[Step], tenth: int) -> str:
    made = sha256()
    for number in range(tenth * ALTERATIONS, (tenth + 1) * ALTERATIONS):
        if (steps[0]["test"], number) not in OTHER_ON_PURPOSE:
            for batch in entries_of(steps, number):
                made.update(batch)
    return made.hexdigest()[:8]


def check(tenths: slice) -> None:
    for steps, line in zip(leases(), DIGESTS.read_text().splitlines(), strict=True):
        digests = line.split()
        for tenth in range(len(digests))[tenths]:
            assert digest(steps, tenth) == digests[tenth], (
                steps[0]["test"],
                f"one of ten alterations from {tenth * ALTERATIONS}",
            )


def test_altered_traffic_has_the_same_entries() -> None:
    check(slice(0, 1))


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_hundred_thousand_altered_packets_have_the_same_entries() -> None:
    check(slice(1, None))

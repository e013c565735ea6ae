"""What the handlers of the cluster run leave outside the bus: a line for each run, and one for each effect."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

RUN, EFFECT = "run", "effect"
SUFFIX = ".notes"


@dataclass(frozen=True, slots=True)
class Note:
    """A handler of this agent began to run for the packet, or made its effect, at a time of the system clock."""

    agent: str
    kind: str
    packet_id: UUID
    at: float


def write_note(folder: Path, agent: str, kind: str, packet_id: UUID, at: float) -> None:
    """Append a line to the agent's file, whole or not at all: its processes write there at the same time."""
    file = os.open(folder / f"{agent}{SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, f"{kind} {packet_id} {at:.4f}\n".encode())
    finally:
        os.close(file)


def read_notes(folder: Path) -> Iterator[Note]:
    """Yield every line that was written."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        for line in path.read_text().splitlines():
            kind, packet_id, at = line.split()
            yield Note(path.stem, kind, UUID(packet_id), float(at))


def has_effect(folder: Path, agent: str, packet_id: UUID) -> bool:
    """Return whether the agent has made its effect of the packet."""
    return any(one.packet_id == packet_id and one.kind == EFFECT for one in read_notes(folder) if one.agent == agent)

"""What chaos did to one agent: the faults that struck, and the packets that the broker confirmed nevertheless."""

import os
from collections import Counter
from pathlib import Path

import orjson

from apc_bus.chaos.profile import Fault, Side
from apc_bus.topology import INGRESS


class Score:
    """Counts for one agent; `merge` adds those of others up."""

    def __init__(self) -> None:
        self.struck: Counter[str] = Counter()
        """`kind side` -> how often."""
        self.confirmed: set[str] = set()
        """packet_id of each packet that the broker confirmed to the agent."""
        self.unknown: set[str] = set()
        """packet_id of each packet whose publish ended in doubt, and was never confirmed."""

    def note(self, fault: Fault, side: Side) -> None:
        """Count a fault."""
        self.struck[f"{fault.kind} {side}"] += 1

    def note_publish(self, exchange: str, message_id: str, *, is_confirmed: bool) -> None:
        """Count how a publish of the agent ended; receipts are not counted, because the log has their content."""
        if exchange != INGRESS:
            return
        if is_confirmed:
            self.confirmed.add(message_id)
            self.unknown.discard(message_id)
        elif message_id not in self.confirmed:
            self.unknown.add(message_id)

    def merge(self, other: "Score") -> None:
        """Add another one's."""
        self.struck += other.struck
        self.confirmed |= other.confirmed
        self.unknown = (self.unknown | other.unknown) - self.confirmed

    def write(self, folder: Path, name: str) -> None:
        """Leave it for `apc up`, which adds up those of all processes."""
        folder.mkdir(parents=True, exist_ok=True)
        document = {
            "struck": self.struck,
            "confirmed": sorted(self.confirmed),
            "unknown": sorted(self.unknown),
        }
        (folder / f"{name}-{os.getpid()}.json").write_bytes(orjson.dumps(document))

    @classmethod
    def read(cls, folder: Path) -> "Score":
        """Return all that the processes left there, added up."""
        total = cls()
        for path in sorted(folder.glob("*.json")):
            document = orjson.loads(path.read_bytes())
            score = cls()
            score.struck.update(document["struck"])
            score.confirmed, score.unknown = set(document["confirmed"]), set(document["unknown"])
            total.merge(score)
        return total

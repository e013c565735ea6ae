"""What `verify` says of a log: findings with their place, and the figures of a shard."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_FINDINGS = 1000
"""Of a shard that are named one by one; what is more is counted."""


@dataclass(frozen=True, slots=True)
class LogFinding:
    """Something that does not fit."""

    shard: int | None
    """None where it is about no single one."""
    seq: int
    """The first entry that it can be about."""
    message: str
    place: str
    """Which entry, or which row of which table: `entry 7`, `log_tiles 1/0`, `shards`."""


@dataclass(slots=True)
class Report:
    """What `verify` found in one shard, or beside all of them."""

    shard: int | None
    """None of what is about no single one."""
    size: int = 0
    """Entries in the tree."""
    root: bytes = b""
    """Recomputed, unless there are findings."""
    entries: int = 0
    """Entries that were recomputed."""
    checkpoints: int = 0
    """Stored checkpoints that were recomputed."""
    outside: int = 0
    """Checkpoints held outside that were compared."""
    released: int = 0
    """Entries from the first on whose leaves the archive alone has; the tree above them was compared, they were not."""
    stayed: int | None = None
    """Rows of released entries that stay in the database and were compared with the archive; None: without one."""
    pending: int = 0
    """Entries that wait for the writer to take them into the tree (maintenance by SQL)."""
    findings: list[LogFinding] = field(default_factory=list)
    unlisted: int = 0
    """Findings beyond the most that are listed."""

    def add(self, seq: int, message: str, place: str | None = None) -> None:
        """Take a finding in; without a place it is about entry `seq`."""
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(LogFinding(self.shard, seq, message, place or f"entry {seq}"))
        else:
            self.unlisted += 1

    @property
    def first(self) -> LogFinding | None:
        """The finding about the earliest entry."""
        return min(self.findings, key=lambda finding: finding.seq, default=None)


# List what neither the tree covers nor `apc log verify` compares (`--uncovered`, docs/reference/log-format.md).

UNCOVERED: Mapping[str, str] = {
    "agent_days.*": "what agents did by day: counted from the log after commit",
    "agent_latencies.*": "how long deliveries took: counted from the log after commit",
    "agent_presence.*": "when agents were heard of last: reported by gates beside the log",
    "answers.*": "answers of people, for lists: filled from the log after commit",
    "checkpoint_exports.*": "the newest checkpoint at each export place; exported checkpoints are compared",
    "contracts.recorded_at": "when a contract was stored",
    "followed.*": "how far the tables that are filled after commit follow the log",
    "log_checkpoints.recorded_at": "when a checkpoint was stored",
    "log_tiles.recorded_at": "when a tile was stored",
    "packet_ids.payload_hash": "distinguishes a repeat in another envelope from another packet",
    "packet_minutes.*": "packets by minute: counted from the log after commit",
    "packet_search.*": "the words of packets, for search: filled from the log after commit",
    "run_cards.*": "names and figures of runs, for lists: filled from the log after commit",
    "sessions.batch_no": "the batch that last wrote the session's state",
    "sessions.epoch": "the epoch of that batch",
    "sessions.updated_at": "when the session's state was stored",
    "shard_epochs.holder": "earlier holders of a shard; the current holder is compared",
    "shard_epochs.opened_at": "when an epoch was opened",
    "shard_epochs.orchestrator": "the name that the orchestrator of an epoch gave itself",
    "shard_places.*": "which orchestrator and which database an operator gave a shard to: beside the log",
    "shards.bounded_seq": "how far the ranges of sessions follow the log; the ranges are compared",
    "shards.moved_to": "where the log of a shard goes on; the guard refuses to write it here all the same",
    "trouble_minutes.*": "refusals and failures by minute: counted from the log after commit",
    "troubles.*": "refusals and failures, for lists: filled from the log after commit",
    "unopened_sessions.*": "where sessions are named before they begin, for the writer's check of repeated entries",
}
"""table.column, or table.*, of schema apc_log -> what it is."""


def is_covered(table: str, column: str | None = None) -> bool:
    """Return whether a change of this column, or of any row of the table, is found."""
    return f"{table}.*" not in UNCOVERED and (column is None or f"{table}.{column}" not in UNCOVERED)

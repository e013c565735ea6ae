"""What `verify` says of a log: findings with their place, and the figures of a shard."""

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

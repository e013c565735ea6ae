"""One lease of a shard: the epoch under which a gate judges, logs and delivers."""

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to serve a shard, granted by the persister. It ends when a later epoch is granted."""

    shard: int
    epoch: int
    committed: str
    """`<epoch>.<batch_no>` of the last batch committed before this epoch: the fencing token of every delivery."""
    user: str
    """The broker user of the orchestrator."""
    holder: UUID

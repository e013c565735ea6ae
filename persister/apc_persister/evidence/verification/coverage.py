"""List what neither the tree covers nor `apc log verify` compares (`--uncovered`, docs/reference/log-format.md)."""

from collections.abc import Mapping

UNCOVERED: Mapping[str, str] = {
    "checkpoint_exports.*": "the newest checkpoint at each export place; exported checkpoints are compared",
    "contracts.recorded_at": "when a contract was stored",
    "log_checkpoints.recorded_at": "when a checkpoint was stored",
    "log_tiles.recorded_at": "when a tile was stored",
    "packet_ids.payload_hash": "distinguishes a repeat in another envelope from another packet",
    "sessions.batch_no": "the batch that last wrote the session's state",
    "sessions.epoch": "the epoch of that batch",
    "sessions.updated_at": "when the session's state was stored",
    "shard_epochs.holder": "earlier holders of a shard; the current holder is compared",
    "shard_epochs.opened_at": "when an epoch was opened",
}
"""table.column, or table.*, of schema apc_log -> what it is."""


def is_covered(table: str, column: str | None = None) -> bool:
    """Return whether a change of this column, or of any row of the table, is found."""
    return f"{table}.*" not in UNCOVERED and (column is None or f"{table}.{column}" not in UNCOVERED)

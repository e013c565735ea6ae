"""What neither the tree covers nor `verify` compares, as `apc log verify --uncovered` and docs/reference/log-format.md
say it.
"""

from collections.abc import Mapping

UNCOVERED: Mapping[str, str] = {
    "checkpoint_exports.*": "how far each place outside was told; what was told is compared with --checkpoints",
    "contracts.recorded_at": "when a contract was stored",
    "log_checkpoints.recorded_at": "when a checkpoint was stored",
    "log_tiles.recorded_at": "when a tile was stored",
    "packet_ids.payload_hash": "by which a repeat with another envelope is told from another packet",
    "sessions.batch_no": "the batch that wrote the session's state last",
    "sessions.epoch": "the epoch of that batch",
    "sessions.updated_at": "when the session's state was stored",
    "shard_epochs.holder": "who held a shard before: the present holder is compared",
    "shard_epochs.opened_at": "when an epoch was given",
}
"""table.column, or table.*, of schema apc_log -> what it is."""


def is_covered(table: str, column: str | None = None) -> bool:
    """Whether a change of this column, or of any row of the table, is found."""
    return f"{table}.*" not in UNCOVERED and (column is None or f"{table}.{column}" not in UNCOVERED)

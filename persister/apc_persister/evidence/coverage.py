"""What neither the tree covers nor `verify` compares, as `apc log verify --uncovered` and docs/log-format.md say it."""

from collections.abc import Mapping

UNCOVERED: Mapping[str, str] = {
    "checkpoint_exports.*": "how far each place outside was told; what was told is compared with --checkpoints",
    "contracts.*": "contract files; the entries name each by its hash",
    "log_checkpoints.recorded_at": "when a checkpoint was stored",
    "log_tiles.recorded_at": "when a tile was stored",
    "packet_ids.*": "what a repeated packet is known by",
    "protocol_tallies.*": "counts beside the log",
    "sessions.*": "the present state of each session",
    "shard_epochs.holder": "who held a shard before: the present holder is compared",
    "shard_epochs.opened_at": "when an epoch was given",
    "task_tallies.*": "counts beside the log",
    "transfer_rulings.*": "verdicts on TRANSFERs beside the log",
    "agent_packets.defines": "derived by the database from the stored bytes",
    "agent_packets.refers_to": "derived by the database from the stored bytes",
}
"""table.column, or table.*, of schema apc_log -> what it is."""


def is_covered(table: str, column: str | None = None) -> bool:
    """Whether a change of this column, or of any row of the table, is found."""
    return f"{table}.*" not in UNCOVERED and (column is None or f"{table}.{column}" not in UNCOVERED)

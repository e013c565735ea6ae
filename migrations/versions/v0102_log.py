"""The log: packets, what happened to them, and the sessions' present state beside it."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0102"
down_revision = "0101"


def upgrade() -> None:
    """Run sql/0102_log.sql."""
    run_script("0102_log")


downgrade = refuse_downgrade

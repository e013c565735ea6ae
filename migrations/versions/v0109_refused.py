"""Indexes for what was refused."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0109"
down_revision = "0108"


def upgrade() -> None:
    """Run sql/0109_refused.sql."""
    run_script("0109_refused")


downgrade = refuse_downgrade

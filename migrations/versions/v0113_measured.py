"""Indexes of the EVALs that measured a protocol."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0113"
down_revision = "0112"


def upgrade() -> None:
    """Run sql/0113_measured.sql."""
    run_script("0113_measured")


downgrade = refuse_downgrade

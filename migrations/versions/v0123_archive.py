"""Segments that are in the archive are recorded and let go of."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0123"
down_revision = "0122"


def upgrade() -> None:
    """Run sql/0123_archive.sql."""
    run_script("0123_archive")


downgrade = refuse_downgrade

"""What follows from the entries: verdicts on TRANSFERs, metrics, the effectiveness of protocols."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0105"
down_revision = "0104"


def upgrade() -> None:
    """Run sql/0105_analytics.sql."""
    run_script("0105_analytics")


downgrade = refuse_downgrade

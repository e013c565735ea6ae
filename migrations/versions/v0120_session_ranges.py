"""The range of the log that the entries of a session stand in."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0120"
down_revision = "0119"


def upgrade() -> None:
    """Run sql/0120_session_ranges.sql."""
    run_script("0120_session_ranges")


downgrade = refuse_downgrade

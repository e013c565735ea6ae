"""The guard: rows of the log never change, each table has its owner and its grants."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0107"
down_revision = "0106"


def upgrade() -> None:
    """Run sql/0107_guard.sql."""
    run_script("0107_guard")


downgrade = refuse_downgrade

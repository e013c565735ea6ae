"""What an agent's login can do to others: no lock on their tables, no key of their tasks."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0112"
down_revision = "0111"


def upgrade() -> None:
    """Run sql/0112_own_rows.sql."""
    run_script("0112_own_rows")


downgrade = refuse_downgrade

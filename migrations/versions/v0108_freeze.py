"""The freeze: DDL on the log is refused outside recorded maintenance."""

from alembic import op

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0108"
down_revision = "0107"


def upgrade() -> None:
    """Run sql/0108_freeze.sql; the scripts after this one run in maintenance."""
    run_script("0108_freeze")
    op.execute("SELECT apc_guard.maintain('the guard was installed')")


downgrade = refuse_downgrade

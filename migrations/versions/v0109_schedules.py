"""Schedules of agents: up to when their firings are accounted for."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0109"
down_revision = "0108"


def upgrade() -> None:
    """Run sql/0109_schedules.sql."""
    run_script("0109_schedules")


downgrade = refuse_downgrade

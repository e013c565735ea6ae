"""A role that reads the tasks and effects of agents."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0110"
down_revision = "0109"


def upgrade() -> None:
    """Run sql/0110_state_readers.sql."""
    run_script("0110_state_readers")


downgrade = refuse_downgrade

"""What follows from the entries: transitions, states of packets and sessions, the registry of agents."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0104"
down_revision = "0103"


def upgrade() -> None:
    """Run sql/0104_states.sql."""
    run_script("0104_states")


downgrade = refuse_downgrade

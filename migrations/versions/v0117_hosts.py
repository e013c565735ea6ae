"""The login of a host has the rows of the agents that run there."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0117"
down_revision = "0116"


def upgrade() -> None:
    """Run sql/0117_hosts.sql."""
    run_script("0117_hosts")


downgrade = refuse_downgrade

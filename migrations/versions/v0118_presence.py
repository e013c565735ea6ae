"""When each agent was heard of last, beside the log."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0118"
down_revision = "0117"


def upgrade() -> None:
    """Run sql/0118_presence.sql."""
    run_script("0118_presence")


downgrade = refuse_downgrade

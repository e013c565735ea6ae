"""Tables of the tasks and runs in which protocols were used, for lineage summaries of a long log."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0111"
down_revision = "0110"


def upgrade() -> None:
    """Run sql/0111_uses.sql."""
    run_script("0111_uses")


downgrade = refuse_downgrade

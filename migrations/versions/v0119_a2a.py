"""The sessions of an opener are found by an index; what A2A clients are told by push."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0119"
down_revision = "0118"


def upgrade() -> None:
    """Run sql/0119_a2a.sql."""
    run_script("0119_a2a")


downgrade = refuse_downgrade

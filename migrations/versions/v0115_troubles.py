"""What goes wrong and what people answered, derived from the log; the role that settles and acknowledges."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0115"
down_revision = "0114"


def upgrade() -> None:
    """Run sql/0115_troubles.sql."""
    run_script("0115_troubles")


downgrade = refuse_downgrade

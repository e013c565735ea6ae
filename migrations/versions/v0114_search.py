"""Tables that search and the list of runs are read from."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0114"
down_revision = "0113"


def upgrade() -> None:
    """Run sql/0114_search.sql."""
    run_script("0114_search")


downgrade = refuse_downgrade

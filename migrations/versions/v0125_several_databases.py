"""Shards may be in several databases; what guards the log knows the fence."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0125"
down_revision = "0124"


def upgrade() -> None:
    """Install the guard again, as it is now, then run sql/0125_several_databases.sql."""
    for script in ("0107_guard", "0108_freeze", "0125_several_databases"):
        run_script(script)


downgrade = refuse_downgrade

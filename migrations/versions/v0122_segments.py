"""The log is divided into segments; what guards it knows them."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0122"
down_revision = "0121"


def upgrade() -> None:
    """Install the guard again, as it is now, then run sql/0122_segments.sql."""
    for script in ("0107_guard", "0108_freeze", "0122_segments"):
        run_script(script)


downgrade = refuse_downgrade

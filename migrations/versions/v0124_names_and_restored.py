"""Names of sessions that have not begun go; a schema for restored segments."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0124"
down_revision = "0123"


def upgrade() -> None:
    """Run sql/0124_names_and_restored.sql."""
    run_script("0124_names_and_restored")


downgrade = refuse_downgrade

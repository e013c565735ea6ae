"""The agents' own schema: memory, tasks and effects, each agent's rows for its own login."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0106"
down_revision = "0105"


def upgrade() -> None:
    """Run sql/0106_app.sql."""
    run_script("0106_app")


downgrade = refuse_downgrade

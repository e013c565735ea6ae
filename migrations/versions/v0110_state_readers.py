"""A role that reads the tasks and effects of agents; and the schedules, where the first release has migrated.

The 0109 of that release made two indexes, which 0102 makes today, and no schedules.
"""

from alembic import op
from sqlalchemy import text

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0110"
down_revision = "0109"


def upgrade() -> None:
    """Run sql/0109_schedules.sql where it is missing, and sql/0110_state_readers.sql."""
    if op.get_bind().execute(text("SELECT to_regclass('apc_app.schedules')")).scalar() is None:
        run_script("0109_schedules")
    run_script("0110_state_readers")


downgrade = refuse_downgrade

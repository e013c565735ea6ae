"""The group roles: owner, writer, reader, agent and recorder."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0101"
down_revision = None


def upgrade() -> None:
    """Run sql/0101_roles.sql."""
    run_script("0101_roles")


downgrade = refuse_downgrade

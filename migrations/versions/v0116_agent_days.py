"""Packets by minute, and agents by day: what they sent, refused, handled and spent, and how long it took."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0116"
down_revision = "0115"


def upgrade() -> None:
    """Run sql/0116_agent_days.sql."""
    run_script("0116_agent_days")


downgrade = refuse_downgrade

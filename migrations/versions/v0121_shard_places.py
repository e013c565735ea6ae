"""Which orchestrator takes a shard."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0121"
down_revision = "0120"


def upgrade() -> None:
    """Run sql/0121_shard_places.sql."""
    run_script("0121_shard_places")


downgrade = refuse_downgrade

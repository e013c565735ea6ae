"""What makes the log provable: its Merkle tree, the contracts, and the keys of encrypted bodies."""

from apc_persister.database.migrate import refuse_downgrade, run_script

revision = "0103"
down_revision = "0102"


def upgrade() -> None:
    """Run sql/0103_evidence.sql."""
    run_script("0103_evidence")


downgrade = refuse_downgrade

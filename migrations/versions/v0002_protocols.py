"""Views of what protocols are measured by: verdicts on TRANSFERs, metrics of EVALs, decay decisions."""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"

SCRIPTS = ("protocols",)


def upgrade() -> None:
    """Run the scripts in order, in the transaction of the migration."""
    folder = Path(__file__).parents[1] / "sql" / revision
    raw = op.get_bind().connection.dbapi_connection
    assert raw is not None
    for name in SCRIPTS:
        script = (folder / f"{name}.sql").read_text(encoding="utf-8")
        raw.run_async(lambda connection, script=script: connection.execute(script))


def downgrade() -> None:
    """Refused: the log is append-only and so is its schema."""
    raise RuntimeError("the log is append-only and has no downgrade: restore a backup taken before the upgrade")

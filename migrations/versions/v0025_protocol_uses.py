"""An index from protocols to the tasks in which they were used."""

from pathlib import Path

from alembic import op

revision = "0025"
down_revision = "0024"

SCRIPTS = ("protocol_uses",)


def upgrade() -> None:
    """Run the scripts in order, in the transaction of the migration."""
    folder = Path(__file__).parents[1] / "sql" / revision
    raw = op.get_bind().connection.dbapi_connection
    assert raw is not None
    for name in SCRIPTS:
        script = (folder / f"{name}.sql").read_text(encoding="utf-8")
        raw.run_async(lambda connection, script=script: connection.execute(script))


def downgrade() -> None:
    """Refused: it would delete the log."""
    raise RuntimeError("the log is append-only and has no downgrade: restore a backup taken before the upgrade")

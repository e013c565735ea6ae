"""What packets refer to, and what they define: derived by the database from the stored bytes."""

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"

SCRIPTS = ("references",)


def upgrade() -> None:
    """Add the derived columns; the table is written anew."""
    folder = Path(__file__).parents[1] / "sql" / revision
    raw = op.get_bind().connection.dbapi_connection
    assert raw is not None
    for name in SCRIPTS:
        script = (folder / f"{name}.sql").read_text(encoding="utf-8")
        raw.run_async(lambda connection, script=script: connection.execute(script))


def downgrade() -> None:
    """Refused: it would delete the log."""
    raise RuntimeError("the log is append-only and has no downgrade: restore a backup taken before the upgrade")

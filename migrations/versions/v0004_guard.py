"""The guard: DDL on the log is refused outside recorded maintenance, and every new table of the log is guarded."""

from pathlib import Path

from alembic import op

revision = "0004"
down_revision = "0003"

SCRIPTS = ("registry", "triggers", "maintenance", "grants", "freeze")


def upgrade() -> None:
    """Run the scripts in order, in the transaction of the migration; the scripts after this one run in maintenance."""
    folder = Path(__file__).parents[1] / "sql" / revision
    raw = op.get_bind().connection.dbapi_connection
    assert raw is not None
    for name in SCRIPTS:
        script = (folder / f"{name}.sql").read_text(encoding="utf-8")
        raw.run_async(lambda connection, script=script: connection.execute(script))
    op.execute("SELECT apc_guard.maintain('the guard was installed')")


def downgrade() -> None:
    """Refused: it would delete the log."""
    raise RuntimeError("the log is append-only and has no downgrade: restore a backup taken before the upgrade")

"""An archiver changes the tables that a superuser restores into: nothing of his runs with those rights."""

from pathlib import Path

import asyncpg
import pytest
from tests.support.log.archived import full_log

from apc_log.errors import ArchiveError
from apc_persister import archiving
from apc_persister.archiving import drop_restored, restore_segment

pytestmark = [pytest.mark.postgres, pytest.mark.long]
_BEGIN = """
CREATE FUNCTION apc_restored.run() RETURNS trigger LANGUAGE plpgsql AS $f$
BEGIN INSERT INTO apc_restored.ran SELECT current_user; RETURN NULL; END $f$;
CREATE FUNCTION apc_restored.run(shard integer) RETURNS boolean LANGUAGE plpgsql AS $f$
BEGIN INSERT INTO apc_restored.ran SELECT current_user; RETURN true; END $f$;
CREATE TABLE apc_restored.ran (name text)
"""
ACTS = (
    "CREATE TRIGGER run BEFORE INSERT ON apc_restored.agent_packets "
    "FOR EACH STATEMENT EXECUTE FUNCTION apc_restored.run()",
    "ALTER TABLE apc_restored.agent_packets ADD CHECK (apc_restored.run(shard))",
)
_FOUND = "SELECT DISTINCT name FROM apc_restored.ran"


async def test_code_of_an_archiver_does_not_run_with_the_rights_of_who_restores(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with full_log(postgres_url, tmp_path) as log:
        await log.release()
        connection = await asyncpg.connect(postgres_url)
        await restore_segment(connection, log.archive, 0, 1)
        await connection.execute("CREATE ROLE strange_archiver LOGIN IN ROLE apc_archiver")
        try:
            for act in ACTS:
                await drop_restored(connection)
                await archiving._make_tables(connection)
                await connection.execute("SET SESSION AUTHORIZATION strange_archiver")
                await connection.execute(_BEGIN)
                await connection.execute(act)
                await connection.execute("RESET SESSION AUTHORIZATION")
                superuser = await connection.fetchval("SELECT current_user")

                with pytest.raises(ArchiveError, match="agent_packets is not as `apc log restore` makes it"):
                    await restore_segment(connection, log.archive, 0, 1)
                assert await connection.fetch(_FOUND) == []

                unguarded = "SELECT NULL WHERE $1::text[] IS NULL"
                with monkeypatch.context() as patch:
                    patch.setattr(archiving, "_CHANGED", unguarded)
                    await restore_segment(connection, log.archive, 0, 1)
                assert [row[0] for row in await connection.fetch(_FOUND)] == [superuser]
                await connection.execute("GRANT ALL ON apc_restored.ran TO PUBLIC")
                await drop_restored(connection)
                await connection.execute(
                    "DROP TABLE apc_restored.ran; DROP FUNCTION apc_restored.run(), apc_restored.run(integer)"
                )
        finally:
            await connection.execute("RESET SESSION AUTHORIZATION")
            await connection.execute("DROP OWNED BY strange_archiver; DROP ROLE strange_archiver")
            await connection.close()

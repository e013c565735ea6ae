"""`apc log erase`, as a user runs it."""

from pathlib import Path

import asyncpg
from tests.support.apc_command import ApcCommand


async def test_it_asks_erases_once_and_says_what_it_does_not_reach(apc: ApcCommand, postgres_url: str) -> None:
    given = {"APC_DATABASE_URL": postgres_url}
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("INSERT INTO apc_keys.subject_keys VALUES ('alice', gen_random_uuid(), 'x')")

    asked = apc("log", "erase", "--subject", "alice", stdin="n\n", given=given)
    assert asked.returncode != 0
    assert await connection.fetchval("SELECT count(*) FROM apc_keys.subject_keys") == 1

    done = apc("log", "erase", "--subject", "alice", "--yes", given=given)
    assert done.returncode == 0, done.stderr
    assert "destroyed 1 key:" in done.stdout
    assert "not reached: backups" in done.stderr
    assert await connection.fetchval("SELECT count(*) FROM apc_keys.subject_keys") == 0

    again = apc("log", "erase", "--subject", "alice", "--yes", given=given)
    assert again.returncode == 2
    assert "there is no key of subject 'alice'" in again.stderr
    await connection.close()


def test_a_setting_without_its_key_is_named(apc: ApcCommand, tmp_path: Path) -> None:
    refused = apc("config", given={"APC_ENCRYPT_BODIES": "true", "APC_DATA_DIR": str(tmp_path)})
    assert refused.returncode == 2
    assert "openssl rand -base64 32" in refused.stderr

"""`apc log erase`: destroy a subject's key, and say what that does not reach."""

import sys

from apc_console.connections.database import open_log
from apc_console.output.terminal import echo
from apc_contracts.text import numbered
from apc_persister.encryption import erase_subject


async def erase_from_log(subject: str) -> None:
    """Destroy a subject's key. Raises SubjectUnknown, and ServiceAway when the user lacks the rights."""
    async with open_log() as pool, pool.acquire() as connection:
        done = await erase_subject(connection, subject)
    echo(f"destroyed {numbered(len(done.key_ids), 'key')}: {', '.join(map(str, done.key_ids))}")
    echo(
        "not reached: backups and WAL of the database, queues of the broker, artifacts, the agents' own state "
        "(docs/explanation/log-security.md)",
        file=sys.stderr,
    )
    if not done.is_swept:
        echo("run `VACUUM FULL apc_keys.subject_keys` as its owner: the key's bytes are in its file", file=sys.stderr)

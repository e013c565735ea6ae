"""The process of a verification: reads the database's URL from standard input, tells its progress in lines of JSON.

It ends when standard input ends, so that it never outlives its server.
"""

import asyncio
import os
import sys
import threading
from typing import Any

import orjson

from apc_bus.database import DATABASE_AWAY, connect, first_line
from apc_bus.settings import LogKeySettings
from apc_contracts.contract.contract import load_contract
from apc_contracts.errors import ApcError
from apc_log.heads import AnyConnection, read_tree_sizes
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.rows import find_strays, list_shards, prepare_reader
from apc_persister.verification.derived import compare_derived
from apc_persister.verification.findings import LogFinding
from apc_persister.verification.sessions import compare_sessions
from apc_persister.verification.verify import verify_shard
from apc_web.pool import READER
from apc_web.problems import error_of
from apc_web.verification_job import LONGEST_MESSAGE, LONGEST_PLACE, MOST_FINDINGS

_SETTINGS = {"role": READER, "default_transaction_read_only": "on", "application_name": "apc-web-verify"}
_BEHIND = 10
"""How much nicer than its server: pages go first."""


async def verify(url: str) -> None:
    """Verify every shard, what is derived from the entries, and every session; tell how far it is."""
    signer = load_signer(LogKeySettings())
    connection = await connect(url, is_reader=True, server_settings=_SETTINGS)
    try:
        await prepare_reader(connection)
        shards = await list_shards(connection)
        sizes = await read_tree_sizes(connection)
        progress = _Progress(sum(sizes.get(shard, 0) for shard in shards))
        findings: list[LogFinding] = []
        unlisted = 0
        for shard in shards:
            key, *older = signer.trusted(shard)
            report = await verify_shard(connection, shard, key, older=older, progress=progress.advance)
            findings += report.findings
            unlisted += report.unlisted
        findings += await _beside(connection)
    finally:
        await connection.close()
    listed = [_listed(one) for one in findings[:MOST_FINDINGS]]
    _tell({"findings": listed, "unlisted": unlisted + len(findings) - len(listed)})


def _listed(one: LogFinding) -> dict[str, Any]:
    message, place = (
        shorten(text, most) for text, most in ((one.message, LONGEST_MESSAGE), (one.place, LONGEST_PLACE))
    )
    return {"shard": one.shard, "seq": one.seq, "message": message, "place": place}


def shorten(text: str, most: int) -> str:
    """Return a text of at most so many characters; an ellipsis says that there is more."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


async def _beside(connection: AnyConnection) -> list[LogFinding]:
    sessions = await compare_sessions(connection, [load_contract()])
    return [*await find_strays(connection), *await compare_derived(connection), *sessions.findings]


class _Progress:
    """Counts entries, and tells each time."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._entries = 0
        self.advance(0)

    def advance(self, entries: int) -> None:
        self._entries += entries
        _tell({"entries": self._entries, "total": max(self._total, self._entries)})


def _tell(report: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(report) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_server() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Verify the log of the URL on standard input."""
    url = sys.stdin.buffer.readline().decode().strip()
    threading.Thread(target=_end_with_server, name="server", daemon=True).start()
    os.nice(_BEHIND)
    try:
        asyncio.run(verify(url))
    except DATABASE_AWAY as error:
        reason = f"{type(error).__name__}: {first_line(error)}"  # for the server's log: it may name hosts and users
        _tell({"words": error_of(error).detail, "reason": reason})
    except ApcError as error:
        _tell({"words": str(error)})
    sys.stdout.flush()
    os._exit(0)  # the thread holds standard input


if __name__ == "__main__":
    main()

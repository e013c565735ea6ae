"""One log in one database, and the same log over two: shard 0 in the home database, shard 1 in another one."""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import UUID, uuid4

import asyncpg
import msgspec
from msgspec import structs
from tests.support.log.archived import spoken_entries
from tests.support.log.entries import packet_entry
from tests.support.log.tampering import disable_guards
from tests.support.servers import PostgresServer

from apc_bus.database import open_pool
from apc_bus.port import Delivery, Message
from apc_bus.settings import PersisterSettings
from apc_contracts.contract.contract import load_contract
from apc_contracts.session.document import SessionDocument
from apc_contracts.vocabulary import RunPhase
from apc_log.batch import (
    EPOCH_OPEN_TYPE,
    LOG_BATCH_TYPE,
    LOG_BATCH_VERSION,
    Entry,
    EpochOpen,
    LineageEntry,
    LogBatch,
    SessionUpdate,
    encode,
)
from apc_persister.database.joined import join_databases
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.tree import TreeSigner
from apc_persister.follower import Follower
from apc_persister.intake import read_message
from apc_persister.transaction import commit
from apc_persister.writer import drop_connection, take_connection

AWAY = "east"
"""Name of the other database."""
SHARDS = 2
START = UUID("aaaaaaaa-0000-4000-8000-000000000009")
"""Names no packet."""
_NO_SHARD = (
    "agent_days agent_latencies packet_minutes trouble_minutes run_cards summed_uses protocol_sums agent_presence"
).split()
_WITH_SHARD = """
SELECT format('%I.%I', relnamespace::regnamespace, relname) FROM pg_class
JOIN pg_attribute ON attrelid = pg_class.oid AND attname = 'shard' AND attnum > 0 AND NOT attisdropped
WHERE relnamespace IN ('apc_log'::regnamespace, 'apc_guard'::regnamespace) AND relkind IN ('r', 'p')
  AND NOT relispartition AND relname <> 'log_tables'
"""


async def write_log(url: str, *, batches: int = 3, shards: Iterable[int] = range(SHARDS), second: int = 1) -> None:
    """Write a log of two shards: three runs with a session in each of them, and one run in shard `second` alone."""
    pool = await open_pool(url, max_size=2)
    connection = await take_connection(pool, timedelta(seconds=60))
    signer = load_signer(PersisterSettings())
    for shard in shards:
        tree = TreeSigner(shard, signer)

        async def write(body: bytes, kind: str, shard: int = shard, tree: TreeSigner = tree) -> None:
            received = read_message(shard, Delivery(Message(body, message_id="load", type=kind), 1, str(shard), False))
            await commit(connection, shard, [received], tree)

        await write(encode(EpochOpen(LOG_BATCH_VERSION, shard, uuid4())), EPOCH_OPEN_TYPE)
        for number in range(batches):
            entries = [*_of_shard(number, shard == second), *_measured(shard, number, shard == second)]
            sessions = _sessions(shard, shard == second) if number == 0 else []
            batch = LogBatch(LOG_BATCH_VERSION, shard, 1, number + 1, datetime.now(UTC), entries, sessions)
            await write(encode(batch), LOG_BATCH_TYPE)
    await drop_connection(pool, connection)
    await _count(pool)
    await pool.close()


async def _count(pool: asyncpg.Pool) -> None:
    """Fill what follows from the log; the sums of one run in four are left to be summed."""
    await Follower(pool).catch_up()
    await pool.execute("SELECT apc_log.sum_runs(now(), 3)")
    await pool.execute("ANALYZE")


def _session(run_id: str, is_second: bool) -> str:
    return f"second-of-{run_id}" if is_second else f"session-of-{run_id}"


def _of_shard(number: int, is_second: bool) -> Iterator[Entry]:
    """Packets of all fates, in the sessions of a shard; its last run is `run-3` in the second one."""
    for entry in spoken_entries(number):
        session_id = getattr(entry, "session_id", None)
        if session_id is None or not is_second:
            yield entry
            continue
        run_id = session_id.removeprefix("session-of-")
        run_id = "run-3" if run_id == "run-2" else run_id
        changes = {"session_id": _session(run_id, is_second)} | ({"run_id": run_id} if hasattr(entry, "run_id") else {})
        yield structs.replace(entry, **changes)


def _measured(shard: int, number: int, is_second: bool) -> Iterator[Entry]:
    """EVALs of tasks that TRANSFERs of both shards were sent to."""
    for place in range(12):
        run_id = f"run-{place % 2}"
        packet = packet_entry(
            session_id=_session(run_id, is_second),
            run_id=run_id,
            task_id=f"task-{place % 7}",
            packet_type="EVAL",
            payload={"metric_set": {"outcome": 0.1 * (place % 5) + 0.05 * shard, "drift_risk": 0.25}},
        )
        yield structs.replace(packet, contract_hash=load_contract().hash)
        yield LineageEntry(
            packet.session_id, packet.packet_id, f"protocol-{place % 4}", ["p-0"], ["w"], False, "",
            None, None, None, None,
        )  # fmt: skip


def _sessions(shard: int, is_second: bool) -> list[SessionUpdate]:
    found = []
    for run_id in ("run-0", "run-1", "run-3" if is_second else "run-2"):
        is_open = run_id == "run-1"
        opened = datetime(2026, 1, 1, 12, shard, tzinfo=UTC)
        document = SessionDocument(
            session_id=_session(run_id, is_second), run_id=run_id, task_id="task-1", opener="user-1",
            contract_hash=load_contract().hash.hex(), start_packet_id=START, opened_at=opened,
            swarms={"swarm-1": [f"member-{shard}"]}, members=[f"member-{shard}"], task_ids=[], generation_limit=3,
            generation_deadline_ms=1000, state_deadline_ms=1000, max_rounds=2, veto_window_ms=10, budgets={},
            state="SESSION_OPEN" if is_open else "CLOSED", run_phase=RunPhase.RESEARCH,
            spent={"packets": 3, "tokens": 40, "cost": 0.5},
        )  # fmt: skip
        found.append(
            SessionUpdate(
                session_id=_session(run_id, is_second), run_id=run_id, state=document.state, is_terminal=not is_open,
                round=0, generation=0, step=1, open_deliveries=int(is_open), document=msgspec.json.encode(document),
            )
        )  # fmt: skip
    return found


@dataclass(frozen=True)
class SplitLog:
    """One log in `whole`, and the same log over `home` and `away`, by the URLs of the databases."""

    whole: str
    home: str
    away: str

    async def join(self, url: str | None = None) -> None:
        """Make the joined schema at home; by another URL of the other database, if given."""
        connection = await asyncpg.connect(self.home)
        try:
            await join_databases(connection, {AWAY: url or await as_server_reaches(connection, self.away)}, {1: AWAY})
        finally:
            await connection.close()

    @asynccontextmanager
    async def taken_away(self) -> AsyncIterator[None]:
        """Let the other database take no connections, and end those that it has."""
        admin = await asyncpg.connect(self.whole)
        name = urlsplit(self.away).path.lstrip("/")
        try:
            await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            await admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1", name)
            yield
        finally:
            await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
            await admin.close()


async def as_server_reaches(connection: asyncpg.Connection, url: str) -> str:
    """Return the URL of a database of the same server as that server reaches it: a socket's folder may be our own."""
    parts = urlsplit(url)
    if parts.hostname is not None:
        return url
    row = await connection.fetchrow("SELECT current_setting('unix_socket_directories'), current_setting('port')")
    assert row is not None
    user = parts.username or dict(parse_qsl(parts.query)).get("user", "postgres")
    return f"postgresql://{user}@{parts.path}?{urlencode({'host': row[0].split(',')[0], 'port': row[1]})}"


@asynccontextmanager
async def split_log(server: PostgresServer, *, batches: int = 3) -> AsyncIterator[SplitLog]:
    """Give a log of two shards in one database, and divided between two."""
    whole = await server.clone()
    await write_log(server.url_of(whole), batches=batches)
    names = [whole]
    try:
        for kept in range(SHARDS):
            name = await server.copy(whole)
            names.append(name)
            await _keep(server.url_of(name), kept)
        log = SplitLog(*map(server.url_of, names))
        await log.join()
        yield log
    finally:
        for name in names:
            await server.drop(name)


async def _keep(url: str, shard: int) -> None:
    """Leave one shard in a database, and count again what has no shard."""
    pool = await open_pool(url, max_size=2)
    await disable_guards(pool)
    for row in await pool.fetch(_WITH_SHARD):
        await pool.execute(f"DELETE FROM {row[0]} WHERE shard <> $1", shard)
    presence = await pool.fetch("SELECT * FROM apc_log.agent_presence")
    await pool.execute(f"TRUNCATE {', '.join(f'apc_log.{one}' for one in _NO_SHARD)}")
    await pool.execute("UPDATE apc_log.run_changes SET summed_seq = NULL")
    await pool.execute("DELETE FROM apc_log.followed")
    await pool.execute("TRUNCATE apc_log.packet_search, apc_log.troubles, apc_log.answers")
    await pool.executemany("INSERT INTO apc_log.agent_presence VALUES ($1, $2)", [tuple(one) for one in presence])
    await _count(pool)
    await pool.close()

"""How the segments of the log age: they are archived, recorded, let go of, and expire.

Each step can be repeated, and the next run goes on where one ended: the archive compares what is written again, the
guard says what is recorded, and tables that were made or detached are found by their names (ADR 26). Nothing is let go
of before an exported checkpoint vouches for its record, and segments go in their order.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import orjson
import yaml
from prometheus_client import Counter, Gauge
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from apc_bus.concurrency import Backoff, cancelled, reason_of
from apc_bus.crash_points import crash_point
from apc_bus.database import DATABASE_AWAY, problems_of
from apc_bus.settings import ArchiveSettings
from apc_bus.settings.sources import Duration
from apc_bus.telemetry import get_logger
from apc_contracts.contract.plain_yaml import PlainReader
from apc_contracts.errors import ContractInvalid
from apc_log.archive import Archive, Manifest
from apc_log.errors import ArchiveError
from apc_log.heads import AnyConnection, log_name_of
from apc_log.placement import LogDatabases
from apc_log.queries.health import read_unarchived
from apc_persister.archiving import archive_segment
from apc_persister.errors import TreeBroken

_SEGMENTS = """
SELECT shard, first_seq, last_seq, state, manifest, (
    SELECT recorded_at FROM apc_log.log_checkpoints AS note
    WHERE note.shard = segments.shard AND tree_size >= last_seq ORDER BY tree_size LIMIT 1
) AS filled_at, now() AS now
FROM apc_log.segments WHERE state NOT IN ('open', 'expired')
  AND shard NOT IN (SELECT shard FROM apc_log.shards WHERE moved_to IS NOT NULL) ORDER BY shard, first_seq
"""
_RECORD = "SELECT apc_guard.record_segment($1, $2, $3, $4, $5::text::jsonb)"
_PROBLEM = "SELECT apc_guard.release_problem($1, $2)"
_BUILD = "SELECT apc_guard.build_thin($1, $2, $3)"
_RELEASE = "SELECT apc_guard.release($1, $2, $3)"
_DROP = "SELECT apc_guard.drop_released($1, $2)"
_EXPIRE = "SELECT apc_guard.expire($1, $2)"
_DETACHED = """
SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = 'apc_log'::regnamespace AND NOT relispartition
               AND relname IN (SELECT apc_guard.segment_name(one.relname, $1, $2) FROM apc_guard.divided() AS one))
"""
_CONTRACTS = "SELECT contract_hash, convert_from(document, 'UTF8')::jsonb ->> 'name' AS name FROM apc_log.contracts"
_LOCK_TIMEOUT = "SET lock_timeout = '2s'"
"""So long a step waits for others; a release says for itself how long they may wait behind it."""
RELEASE_TRIES = 20


class _Ages(BaseModel):
    """How long rows stay."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    release_after: Duration | None = None
    expire_after: Duration | None = None


class Policy(_Ages):
    """How long segments stay in the database, and their rows in the archive; None = without end.

    Sessions that a contract with a longer `release_after` judged stay in the database until that has passed; one with a
    longer `expire_after`, or none, keeps the segment in the archive.
    """

    contracts: Mapping[str, _Ages] = Field(default_factory=dict)
    """By the name of a contract."""


class PolicyUnusable(ArchiveError):
    """The file of APC_ARCHIVE_POLICY is no policy."""


def load_policy(path: Path | None, hot: timedelta) -> Policy:
    """Return the policy of a file; without one segments stay for `hot`, and never expire. Raises PolicyUnusable."""
    if path is None:
        return Policy(release_after=hot)
    try:
        document = PlainReader(path.read_text(encoding="utf-8")).document()
        return Policy.model_validate({"release_after": hot} | document if isinstance(document, dict) else document)
    except (OSError, UnicodeError, ContractInvalid, yaml.YAMLError) as error:
        raise PolicyUnusable(f"APC_ARCHIVE_POLICY {path} cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        field_name = ".".join(map(str, first["loc"]))
        message = first["msg"]
        if first["type"] == "extra_forbidden":
            known = _Ages if first["loc"][:-1] else Policy
            message = f"no such key: write {', '.join(known.model_fields)}"
        raise PolicyUnusable(f"APC_ARCHIVE_POLICY {path}, {field_name}: {message}") from error


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did to a segment."""

    shard: int
    first: int
    last: int
    done: str
    """`archived`, `released`, `expired`, or `waits`."""
    detail: str
    """One line."""


@dataclass(slots=True)
class Ageing:
    """One look at every full segment: what policy and guard allow is done. Its user is a member of apc_archiver."""

    connection: AnyConnection
    archive: Archive
    policy: Policy
    folder: Path | None = None
    """For files while a segment is written."""
    unknown: set[str] = field(default_factory=set)
    """Contracts that the policy names and the log has not, once it has looked."""
    _contracts: dict[bytes, _Ages] = field(default_factory=dict)

    async def run(self) -> AsyncIterator[Step]:
        """Yield what was done to each segment, in the order of the log.

        Raises:
            ArchiveError: the archive is away, or differs from the log.
            TreeBroken: the log differs from its tree.
            asyncpg.PostgresError, OSError: as the database.
        """
        await self.connection.execute(_LOCK_TIMEOUT)
        await self._read_contracts()
        for row in await self.connection.fetch(_SEGMENTS):
            place = row["shard"], row["first_seq"], row["last_seq"]
            state = row["state"]
            if state == "sealed":
                yield Step(*place, "archived", await self._archive(*place))
                state = "recorded"
            age = row["now"] - row["filled_at"] if row["filled_at"] is not None else timedelta(0)
            if state == "recorded" and _is_past(self.policy.release_after, age):
                yield await self._release(*place, age)
            elif state == "released":
                if await self.connection.fetchval(_DETACHED, *place[:2]):
                    await self._drop(*place[:2])
                if self._may_expire(age):
                    yield await self._expire(*place)

    async def _archive(self, shard: int, first: int, last: int) -> str:
        manifest = await archive_segment(self.connection, self.archive, shard, first, last, folder=self.folder)
        crash_point("archiver.before_record")
        entry = await record_segment(self.connection, manifest)
        crash_point("archiver.after_record")
        return f"recorded by entry {entry}"

    async def _release(self, shard: int, first: int, last: int, age: timedelta) -> Step:
        problem = await self.connection.fetchval(_PROBLEM, shard, first)
        if problem is not None:
            return Step(shard, first, last, "waits", problem)
        keep = [hash_ for hash_, ages in self._contracts.items() if not _is_past(ages.release_after, age)]
        kept = await self.connection.fetchval(_BUILD, shard, first, keep)
        crash_point("archiver.after_thin")
        for left in reversed(range(RELEASE_TRIES)):
            try:
                entry = await self.connection.fetchval(_RELEASE, shard, first, keep)
                break
            except asyncpg.SerializationError:
                kept = await self.connection.fetchval(_BUILD, shard, first, keep)
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
                if not left:
                    return Step(shard, first, last, "waits", f"readers of the log are in the way: {error}")
                await asyncio.sleep(random.uniform(0.1, 1.0))
        else:
            return Step(shard, first, last, "waits", "more of it has to stay each time")
        crash_point("archiver.after_swap")
        await self._drop(shard, first)
        return Step(shard, first, last, "released", f"recorded by entry {entry}; {kept} packets stay")

    async def _drop(self, shard: int, first: int) -> None:
        await self.connection.execute(_DROP, shard, first)
        crash_point("archiver.after_drop")

    async def _expire(self, shard: int, first: int, last: int) -> Step:
        try:
            entry = await self.connection.fetchval(_EXPIRE, shard, first)
        except asyncpg.ObjectNotInPrerequisiteStateError as error:
            return Step(shard, first, last, "waits", str(error))
        return Step(shard, first, last, "expired", f"recorded by entry {entry}: its rows may go from the archive")

    def _may_expire(self, age: timedelta) -> bool:
        """The longest of all policies decides: an object of the archive has packets of every contract."""
        ages = [self.policy.expire_after, *(one.expire_after for one in self._contracts.values())]
        return all(_is_past(one, age) for one in ages)

    async def _read_contracts(self) -> None:
        self.unknown = set(self.policy.contracts)
        for row in await self.connection.fetch(_CONTRACTS) if self.unknown else ():
            if row["name"] in self.policy.contracts:
                self._contracts[row["contract_hash"]] = self.policy.contracts[row["name"]]
                self.unknown.discard(row["name"])
        if self.unknown:
            hint = "the log has no such contract"
            log.warning("policy_of_unknown_contracts", contracts=sorted(self.unknown), hint=hint)


async def record_segment(connection: AnyConnection, manifest: Manifest) -> int:
    """Record an archived segment in the log; return the number of the entry."""
    given = (manifest.shard, manifest.first, manifest.root, manifest.sha256, _summary(manifest))
    return int(await connection.fetchval(_RECORD, *given))


def _summary(manifest: Manifest) -> str:
    """Return what the entry of a segment says beside its root and its manifest: JSON."""
    summary = {
        "checkpoint_size": manifest.note.checkpoint.size,
        "counts": dict(manifest.counts),
        "bytes": sum(one.size for one in manifest.objects),
        "tallies_sha256": manifest.tallies_sha256,
    }
    return orjson.dumps(summary, option=orjson.OPT_SORT_KEYS).decode()


def _is_past(limit: timedelta | None, age: timedelta) -> bool:
    return limit is not None and age >= limit


# The service: a look at each interval.

INTERVAL = timedelta(minutes=1)
_LONGEST_PAUSE_S = 300.0
_WAITING = Gauge(
    "apc_archive_waiting_seconds",
    "How long the oldest full segment has waited to be archived and recorded; 0 = none does",
)
_STEPS = Counter("apc_archive_segments", "Segments that were archived, released, expired", ["done"])
_FAILURES = (*DATABASE_AWAY, ArchiveError, TreeBroken, asyncpg.PostgresError)
"""What an operator mends: the next look takes it up again."""

log = get_logger(__name__)


class Archiver:
    """Looks at every interval at the segments that are full; what fails is tried again, and told in `problems`."""

    def __init__(self, databases: LogDatabases, settings: ArchiveSettings, policy: Policy) -> None:
        """Prepare it, over databases in each of which its user is a member of apc_reader and apc_archiver."""
        self._databases = databases
        self._settings = settings
        self._policy = policy
        self._full_since: dict[str, datetime | None] = {}
        """By the name of a database."""
        self._failures: dict[str, str] = {}
        _WAITING.set_function(self._waiting_seconds)
        for done in ("archived", "released", "expired"):
            _STEPS.labels(done)

    @property
    def problems(self) -> list[str]:
        """Why segments are not archived, a sentence each; from any thread."""
        failures = dict(self._failures)
        problems = [problem for pool in self._databases.known_pools for problem in problems_of(pool)]
        where = {name: f" in database {name}" if self._databases.has_others else "" for name in failures}
        return problems + [f"segments{where[name]} are not archived: {why}" for name, why in sorted(failures.items())]

    def _waiting_seconds(self) -> float:
        since = min((one for one in [*self._full_since.values()] if one is not None), default=None)
        return 0.0 if since is None else max((datetime.now(UTC) - since).total_seconds(), 0.0)

    async def run(self, stop: asyncio.Event) -> None:
        """Look until `stop` is set, which ends a step where it is: the next run goes on."""
        log.info(
            "archiver_started",
            archive=self._settings.archive_url,
            every_s=INTERVAL.total_seconds(),
            release_after=str(self._policy.release_after or "never"),
            expire_after=str(self._policy.expire_after or "never"),
        )
        stopping = asyncio.create_task(stop.wait())
        backoff = Backoff(2 * INTERVAL.total_seconds(), _LONGEST_PAUSE_S)
        while not stop.is_set():
            looking = asyncio.create_task(self.look())
            await asyncio.wait((looking, stopping), return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                await cancelled(looking)
                return
            if await looking:
                backoff.reset()
                pause_s = INTERVAL.total_seconds()
            else:
                pause_s = backoff.take()
            await asyncio.wait((stopping,), timeout=pause_s)

    async def look(self) -> bool:
        """Do what there is to do in each database, whatever keeps it from another; return whether nothing did."""
        for name, pool in self._databases.pools.items():
            try:
                await self._look(name, pool)
            except _FAILURES as error:
                reason = reason_of(error)
                if reason != self._failures.get(name):
                    log.warning("segments_not_archived", database=name, reason=reason)
                self._failures[name] = reason
            else:
                self._failures.pop(name, None)
        return not self._failures

    async def _look(self, name: str, pool: asyncpg.Pool) -> None:
        self._full_since[name] = (await read_unarchived(pool))["since"]
        async with pool.acquire() as connection:
            log_name = await log_name_of(connection)
            if log_name is None:
                return
            archive = Archive.open(self._settings, log_name)
            async for step in Ageing(connection, archive, self._policy).run():
                if step.done != "waits":
                    _STEPS.labels(step.done).inc()
                    log.info("segment_aged", shard=step.shard, first_seq=step.first, done=step.done, detail=step.detail)
        self._full_since[name] = (await read_unarchived(pool))["since"]


# What there is, and holds.

_LISTED = """
SELECT segment.shard, first_seq, last_seq, segment.state, record_seq,
       (manifest ->> 'bytes')::bigint AS archived_bytes, (
    SELECT recorded_at FROM apc_log.log_checkpoints AS note
    WHERE note.shard = segment.shard AND tree_size >= last_seq ORDER BY tree_size LIMIT 1
) AS full_since, (
    SELECT count(*) FROM apc_log.sessions AS session
    WHERE session.shard = segment.shard AND is_open AND coalesce(session.first_seq, 0) <= segment.last_seq
) AS open_sessions, (
    SELECT count(*) FROM apc_log.holds AS hold WHERE is_in_force AND (
        contract_hash IS NOT NULL OR EXISTS (
            SELECT FROM apc_log.sessions AS session
            WHERE session.shard = segment.shard
              AND (session.session_id = hold.session_id OR session.run_id = hold.run_id)
              AND (coalesce(session.first_seq, 0) = 0
                   OR session.first_seq <= segment.last_seq AND session.last_seq >= segment.first_seq)))
) AS holds, (
    SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relnamespace = 'apc_log'::regnamespace
       AND relname ~ ('^[a-z_]+_' || segment.shard || '_' || first_seq || '(_thin)?$') AND relkind = 'r'
) AS hot_bytes
FROM apc_log.segments AS segment JOIN apc_log.shards USING (shard)
WHERE ($1::integer IS NULL OR segment.shard = $1) AND first_seq < next_seq AND moved_to IS NULL
ORDER BY segment.shard, first_seq
"""
_HOLDS = """
SELECT hold_id::text, session_id, run_id, encode(contract_hash, 'hex') AS contract_hash, reason, actor, since, until,
       CASE WHEN is_in_force THEN 'in force' WHEN lifted_at IS NOT NULL THEN 'lifted' ELSE 'over' END AS state
FROM apc_log.holds ORDER BY since
"""
_HOLD = "SELECT apc_guard.hold($1, $2, $3, $4, $5, $6)"
_KNOWN = """
SELECT EXISTS (SELECT FROM apc_log.sessions WHERE session_id = $1 OR run_id = $2)
    OR EXISTS (SELECT FROM apc_log.unopened_sessions WHERE session_id = $1)
    OR EXISTS (SELECT FROM apc_log.contracts WHERE contract_hash = $3)
"""
_IS_HELD = "SELECT EXISTS (SELECT FROM apc_log.holds WHERE hold_id = $1 AND lifted_at IS NULL)"
_LIFT = "SELECT apc_guard.lift_hold($1)"


async def list_segments(connection: AnyConnection | asyncpg.Pool, shard: int | None = None) -> list[asyncpg.Record]:
    """Return every segment that has entries, of one shard or of all: range, state, sizes, what keeps it.

    `holds` are those in force that keep rows of it in the database, or may: of a contract each may.
    """
    return list(await connection.fetch(_LISTED, shard))


async def list_holds(pool: asyncpg.Pool) -> list[asyncpg.Record]:
    """Return every hold, also those that are over."""
    return await pool.fetch(_HOLDS)


async def hold(
    databases: Sequence[AnyConnection],
    reason: str,
    *,
    session: str | None = None,
    run: str | None = None,
    contract: bytes | None = None,
    until: datetime | None = None,
) -> UUID:
    """Hold a session, a run, or what a contract (its SHA-256) judged, in each database; return the id of the hold.

    Raises:
        asyncpg.InvalidParameterValueError: not one of the three is named, or there is no reason.
        asyncpg.InsufficientPrivilegeError: the database's user is no member of apc_archiver.
    """
    hold_id = uuid4()
    async with AsyncExitStack() as stack:
        for database in databases:
            await stack.enter_async_context(database.transaction())
            await database.execute(_HOLD, session, run, contract, reason, until, hold_id)
    return hold_id


async def names_something(
    connection: AnyConnection, *, session: str | None = None, run: str | None = None, contract: bytes | None = None
) -> bool:
    """Return whether the log knows what a hold would name: a mistyped name holds nothing."""
    known: bool = await connection.fetchval(_KNOWN, session, run, contract)
    return known


async def lift_hold(databases: Sequence[AnyConnection], hold_id: UUID) -> None:
    """End a hold in each database that has it. Raises as `hold`, when none has."""
    held = [database for database in databases if await database.fetchval(_IS_HELD, hold_id)]
    async with AsyncExitStack() as stack:
        for database in held or databases[:1]:
            await stack.enter_async_context(database.transaction())
            await database.execute(_LIFT, hold_id)

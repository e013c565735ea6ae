"""What is known of an effect, and where it is kept: the port, the store in RAM, and the one in Postgres."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar
from uuid import UUID, uuid5

import asyncpg
import orjson
from pydantic import JsonValue

from apc_agents.errors import AgentError
from apc_agents.patience import patiently
from apc_contracts.wire.receipts import MAX_EFFECT_KEY

if TYPE_CHECKING:
    from apc_contracts.packet import Packet

ResultT = TypeVar("ResultT")


class EffectState(StrEnum):
    """Where an effect stands."""

    RUNNING = "RUNNING"
    """A worker that gives signs of life is making it."""
    UNKNOWN = "UNKNOWN"
    """It was begun, and how that ended was not recorded."""
    RESULT_LOST = "RESULT_LOST"
    """It was made; what it gave could not be kept."""
    MADE = "MADE"


UNSETTLED = frozenset({EffectState.UNKNOWN, EffectState.RESULT_LOST})
"""An operator, or the handler, has to look."""


@dataclass(frozen=True, slots=True)
class EffectId:
    """An effect of one agent for one packet; `key` is the handler's own name for it."""

    packet_id: UUID
    agent_id: str
    key: str

    def __str__(self) -> str:
        return f"effect {self.key!r} of packet {self.packet_id} by {self.agent_id}"


MAX_SCOPE_NAME: Final = 200
"""Characters of the name of a scope without a packet."""
_SCOPES: Final = UUID("6f0c1f5e-6d0b-5a61-9f0e-2b7f4a0f9c41")
"""The namespace of the ids of scopes without a packet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What an effect belongs to: within it, an effect of one key is made once.

    In a handler it is the packet, for one agent. Without a bus it is a name that the program chooses and gives again
    when it runs again, such as the id of a run or of a job.
    """

    packet_id: UUID
    """Of the packet; for a name an id that is derived from it."""
    agent_id: str
    """Whose effects."""
    session_id: str
    """The packet's session, or the name."""
    expires_at: datetime
    """From then on nobody will ask for its effects again."""

    @classmethod
    def of(cls, packet: "Packet", agent_id: str) -> Self:
        """Return the scope of an agent that handles this packet."""
        return cls(
            packet_id=packet.packet_id,
            agent_id=agent_id,
            session_id=packet.trace.session_id,
            expires_at=packet.expires,
        )

    @classmethod
    def named(cls, name: str, agent_id: str, lasts: timedelta) -> Self:
        """Return the scope with this name; `lasts` is how long its effects may be asked for. Raises AgentError."""
        if not isinstance(name, str) or not 0 < len(name) <= MAX_SCOPE_NAME or not name.isprintable():
            raise AgentError(f"{name!r} is no name of a scope: give 1 to {MAX_SCOPE_NAME} printable characters")
        expires_at = datetime.now(UTC) + lasts
        scope_id = uuid5(_SCOPES, f"{agent_id}/{name}")
        return cls(packet_id=scope_id, agent_id=agent_id, session_id=name, expires_at=expires_at)

    def effect_id(self, key: str) -> EffectId:
        """Return the effect of this key. Raises AgentError for what is no key."""
        if not isinstance(key, str) or not 0 < len(key) <= MAX_EFFECT_KEY or not key.isprintable():
            raise AgentError(f"{key!r} is no key of an effect: give 1 to {MAX_EFFECT_KEY} printable characters")
        return EffectId(self.packet_id, self.agent_id, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectClaim:
    """A wish to make an effect. `expires_at`: from then on nobody will ask for it again, as its packet has expired."""

    effect_id: EffectId
    claim_id: UUID
    session_id: str
    worker: str
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRecord:
    """An effect as it is kept. `problem`: why it is UNKNOWN (None = its worker died), or why the result was lost."""

    effect_id: EffectId
    claim_id: UUID
    session_id: str
    worker: str
    state: EffectState
    claimed_at: datetime
    made_at: datetime | None
    result: JsonValue
    problem: str | None
    settled_by: str | None

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON, for `apc effect`."""
        return {
            "packet_id": str(self.effect_id.packet_id),
            "agent_id": self.effect_id.agent_id,
            "key": self.effect_id.key,
            "state": self.state.value,
            "session_id": self.session_id,
            "worker": self.worker,
            "claimed_at": self.claimed_at,
            "made_at": self.made_at,
            "result": self.result,
            "problem": self.problem,
            "settled_by": self.settled_by,
        }


class EffectError(AgentError):
    """An effect cannot be made, or its result not be given; `effect_id` names packet, agent and key.

    AgentError
      EffectError
        EffectUnknown      (effect_id, since): claimed, and never recorded: it may have been made
        EffectResultLost   (effect_id): it was made, and what it gave could not be kept
        EffectSettled      (effect_id): there is nothing to settle: it is made, being made, or was never claimed

    What `fn` itself raises goes through `ctx.once`. It raises EffectNotMade to say that nothing has happened.

    ```python
    charged = []


    async def charge() -> str:
        charged.append("r-1")
        raise TimeoutError  # it may have been charged


    @desk.on(Question)
    async def pay(question: Question, ctx: HandlerContext) -> Answer:
        try:
            return Answer(text=await ctx.once("charge", charge))
        except (TimeoutError, EffectUnknown):  # EffectUnknown: an attempt before this one began it
            return Answer(text=await ctx.settle("charge", charged[0]))  # the bank says that it has happened
        except EffectResultLost as error:
            return Answer(text=error.problem)


    async with AgentTestClient(desk) as client:
        assert content_of(await client.send(Question(text="pay")), Answer).text == "r-1"
    assert len(charged) == 1 and issubclass(EffectSettled, EffectError)
    ```

    Attributes:
        effect_id: packet, agent and key of the effect; the text of the error is its name and the `message`.
    """

    def __init__(self, effect_id: EffectId, message: str) -> None:
        super().__init__(f"{effect_id} {message}")
        self.effect_id = effect_id


class EffectUnknown(EffectError):
    """Somebody began to make it and did not record how that ended: it may have been made, and is not made again.

    `effect_id` is the effect, `since` when it was claimed, `worker` by whom, `problem` what became of it; None when its
    worker died.
    """

    def __init__(self, effect_id: EffectId, since: datetime, worker: str, problem: str | None) -> None:
        why = problem or "gave no sign of life before it was recorded"
        super().__init__(
            effect_id,
            f"is unknown: {worker} began it at {since.isoformat(timespec='seconds')} and {why}. Find out whether it "
            "happened, then ctx.settle(key, result) or ctx.release(key), or `apc effect settle`; without a bus "
            "store.settle(error.effect_id, result, by) or store.release(error.effect_id)",
        )
        self.since = since
        self.worker = worker
        self.problem = problem


class EffectResultLost(EffectError):
    """It was made, and is not made again; what `effect_id` gave could not be kept: `problem` says where and why."""

    def __init__(self, effect_id: EffectId, problem: str) -> None:
        super().__init__(
            effect_id,
            f"was made, but its result cannot be kept: {problem}. Give it one with ctx.settle(key, result), "
            "or `apc effect settle`",
        )
        self.problem = problem


class EffectSettled(EffectError):
    """There is nothing to settle: the `message` says what `effect_id` is."""


class EffectNotMade(Exception):
    """Raised by what makes an effect: nothing has happened, it may be tried again.

    ```python
    tries = []


    async def order() -> str:
        tries.append("try")
        if len(tries) == 1:
            raise EffectNotMade("the shop is closed")
        return "o-1"


    @desk.on(Question)
    async def buy(question: Question, ctx: HandlerContext) -> Answer:
        try:
            return Answer(text=await ctx.once("order", order))
        except EffectNotMade:
            return Answer(text=await ctx.once("order", order))  # or `raise Retry(...)`, for another time


    async with AgentTestClient(desk) as client:
        assert content_of(await client.send(Question(text="buy")), Answer).text == "o-1"
    ```
    """


MAX_LISTED = 1_000
"""Effects of one list, whatever its limit."""


class EffectStore(Protocol):
    """Effects by (packet_id, agent_id, key). Durable when a call returns; all times are the store's own.

    A claim is held for as long as its lease is renewed. What its holder says late still counts while nobody else has
    settled it: the holder knows.
    """

    async def claim(self, claim: EffectClaim, lease: timedelta) -> EffectRecord:
        """Claim an effect that nobody has claimed; returns what is kept, which may be another's claim."""
        ...

    async def renew(self, effect_id: EffectId, claim_id: UUID, lease: timedelta) -> None:
        """Renew the lease of a claim."""
        ...

    async def record(
        self, effect_id: EffectId, claim_id: UUID, result: JsonValue, *, problem: str | None = None
    ) -> EffectRecord | None:
        """Record that the effect was made; return what is kept: its result, why it cannot be kept, or None."""
        ...

    async def interrupt(self, effect_id: EffectId, claim_id: UUID, problem: str) -> None:
        """Record that the effect was begun and that its holder does not know how it ended."""
        ...

    async def withdraw(self, effect_id: EffectId, claim_id: UUID) -> None:
        """Delete a claim: its holder says that the effect has not happened."""
        ...

    async def settle(self, effect_id: EffectId, result: JsonValue, by: str) -> EffectRecord:
        """Settle an unknown effect: it has happened, with this result. Raises EffectSettled."""
        ...

    async def release(self, effect_id: EffectId) -> None:
        """Settle an unknown effect: it has not happened, and who asks next makes it. Raises EffectSettled."""
        ...

    async def get(self, effect_id: EffectId) -> EffectRecord | None:
        """Return the effect; None when nobody has claimed it."""
        ...

    async def list(
        self,
        *,
        agent_id: str | None = None,
        packet_id: UUID | None = None,
        states: Collection[EffectState] | None = None,
        limit: int = 100,
    ) -> Sequence[EffectRecord]:
        """Return the newest effects, newest first; at most MAX_LISTED."""
        ...

    async def purge(self, agent_id: str, retention: timedelta) -> int:
        """Forget what was made for packets that expired so long ago; says how many. What is unknown stays."""
        ...


def check_unsettled(effect_id: EffectId, kept: EffectRecord | None, *, may_be_made: bool = True) -> None:
    """Raise EffectSettled unless there is something to settle; what was made cannot be released."""
    if kept is None:
        raise EffectSettled(effect_id, "is unknown to the store: nobody has claimed it, or it was released")
    if kept.state not in UNSETTLED:
        raise EffectSettled(effect_id, f"is {kept.state}: only an effect that is UNKNOWN, or RESULT_LOST, is settled")
    if kept.state is EffectState.RESULT_LOST and not may_be_made:
        raise EffectSettled(effect_id, f"was made at {kept.made_at}: it cannot be released, give it a result")


# The store in RAM, for tests and for workers without a database.


def _now() -> datetime:
    return datetime.now(UTC)


class InMemoryEffectStore:
    """An EffectStore in memory, for as many threads as have it. `now` is its clock."""

    def __init__(self, now: Callable[[], datetime] = _now) -> None:
        self._now = now
        self._lock = RLock()
        self._kept: dict[EffectId, EffectRecord] = {}
        self._leases: dict[EffectId, datetime] = {}
        self._expiries: dict[EffectId, datetime] = {}

    async def claim(self, claim: EffectClaim, lease: timedelta) -> EffectRecord:
        """Claim an effect."""
        with self._lock:
            known = self._seen(claim.effect_id)
            if known is not None:
                return known
            self._leases[claim.effect_id] = self._now() + lease
            self._expiries[claim.effect_id] = claim.expires_at
            kept = self._kept[claim.effect_id] = EffectRecord(
                effect_id=claim.effect_id,
                claim_id=claim.claim_id,
                session_id=claim.session_id,
                worker=claim.worker,
                state=EffectState.RUNNING,
                claimed_at=self._now(),
                made_at=None,
                result=None,
                problem=None,
                settled_by=None,
            )
            return kept

    async def renew(self, effect_id: EffectId, claim_id: UUID, lease: timedelta) -> None:
        """Renew the lease of a claim."""
        if self._is_open(effect_id, claim_id):
            self._leases[effect_id] = self._now() + lease

    async def record(
        self, effect_id: EffectId, claim_id: UUID, result: JsonValue, *, problem: str | None = None
    ) -> EffectRecord | None:
        """Record that the effect was made."""
        with self._lock:
            if self._is_open(effect_id, claim_id):
                self._made(effect_id, result, problem, None)
            return self._seen(effect_id)

    async def interrupt(self, effect_id: EffectId, claim_id: UUID, problem: str) -> None:
        """Record that the effect was begun and that no more is known."""
        if self._is_open(effect_id, claim_id):
            self._leases[effect_id] = self._now()
            self._kept[effect_id] = replace(self._kept[effect_id], problem=problem)

    async def withdraw(self, effect_id: EffectId, claim_id: UUID) -> None:
        """Delete a claim: its effect has not happened."""
        if self._is_open(effect_id, claim_id):
            self._forget(effect_id)

    async def settle(self, effect_id: EffectId, result: JsonValue, by: str) -> EffectRecord:
        """Settle an unknown effect: it has happened."""
        with self._lock:
            check_unsettled(effect_id, self._seen(effect_id))
            return self._made(effect_id, result, None, by)

    async def release(self, effect_id: EffectId) -> None:
        """Settle an unknown effect: it has not happened."""
        with self._lock:
            check_unsettled(effect_id, self._seen(effect_id), may_be_made=False)
            self._forget(effect_id)

    async def get(self, effect_id: EffectId) -> EffectRecord | None:
        """Return the effect."""
        return self._seen(effect_id)

    async def list(
        self,
        *,
        agent_id: str | None = None,
        packet_id: UUID | None = None,
        states: Collection[EffectState] | None = None,
        limit: int = 100,
    ) -> Sequence[EffectRecord]:
        """Return the newest effects."""
        with self._lock:
            seen = [self._now_of(kept) for kept in reversed(self._kept.values())]
        records = [
            one
            for one in seen
            if agent_id in (None, one.effect_id.agent_id)
            and packet_id in (None, one.effect_id.packet_id)
            and (states is None or one.state in states)
        ]
        return records[: min(limit, MAX_LISTED)]

    async def purge(self, agent_id: str, retention: timedelta) -> int:
        """Forget what is old."""
        old = [
            effect_id
            for effect_id, kept in self._kept.items()
            if effect_id.agent_id == agent_id
            and kept.made_at is not None
            and self._expiries[effect_id] < self._now() - retention
        ]
        for effect_id in old:
            self._forget(effect_id)
        return len(old)

    def _seen(self, effect_id: EffectId) -> EffectRecord | None:
        kept = self._kept.get(effect_id)
        return None if kept is None else self._now_of(kept)

    def _now_of(self, kept: EffectRecord) -> EffectRecord:
        is_late = kept.state is EffectState.RUNNING and self._leases[kept.effect_id] <= self._now()
        return replace(kept, state=EffectState.UNKNOWN) if is_late else kept

    def _is_open(self, effect_id: EffectId, claim_id: UUID) -> bool:
        kept = self._kept.get(effect_id)
        return kept is not None and kept.claim_id == claim_id and kept.made_at is None

    def _made(self, effect_id: EffectId, result: JsonValue, problem: str | None, by: str | None) -> EffectRecord:
        kept = self._kept[effect_id]
        made = self._kept[effect_id] = replace(
            kept,
            state=EffectState.MADE if problem is None else EffectState.RESULT_LOST,
            made_at=kept.made_at or self._now(),
            result=result,
            problem=problem,
            settled_by=by,
        )
        return made

    def _forget(self, effect_id: EffectId) -> None:
        del self._kept[effect_id], self._leases[effect_id], self._expiries[effect_id]


# The store in Postgres, table apc_app.agent_effects. One statement is one transaction: the primary key decides who
# makes an effect.

_STATE = """
CASE WHEN made_at IS NOT NULL THEN CASE WHEN problem IS NULL THEN 'MADE' ELSE 'RESULT_LOST' END
     WHEN lease_until > clock_timestamp() THEN 'RUNNING' ELSE 'UNKNOWN' END
"""
_COLUMNS = f"""
packet_id, agent_id, key, claim_id, session_id, worker, {_STATE} AS state, claimed_at, made_at, result::text AS result,
problem, settled_by
"""
_PLACE = "packet_id = $1 AND agent_id = $2 AND key = $3"
_HELD = f"{_PLACE} AND claim_id = $4 AND made_at IS NULL"

CLAIM = f"""
INSERT INTO apc_app.agent_effects (packet_id, agent_id, key, claim_id, session_id, worker, expires_at, lease_until)
VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp() + $8::interval)
ON CONFLICT (packet_id, agent_id, key) DO NOTHING RETURNING {_COLUMNS}
"""

GET = f"SELECT {_COLUMNS} FROM apc_app.agent_effects WHERE {_PLACE}"

RENEW = f"UPDATE apc_app.agent_effects SET lease_until = clock_timestamp() + $5::interval WHERE {_HELD}"

RECORD = f"""
UPDATE apc_app.agent_effects SET made_at = clock_timestamp(), result = $5::text::jsonb, problem = $6 WHERE {_HELD}
"""

INTERRUPT = f"UPDATE apc_app.agent_effects SET lease_until = clock_timestamp(), problem = $5 WHERE {_HELD}"

# The right to DELETE is that to lock the table: a trigger of the table has it, and removes what is marked.
_REMOVE = "UPDATE apc_app.agent_effects SET is_removed = true"

WITHDRAW = f"{_REMOVE} WHERE {_HELD}"

SETTLE = f"""
UPDATE apc_app.agent_effects
SET made_at = coalesce(made_at, clock_timestamp()), result = $4::text::jsonb, problem = NULL, settled_by = $5
WHERE {_PLACE} AND {_STATE} IN ('UNKNOWN', 'RESULT_LOST') RETURNING true
"""

RELEASE = f"{_REMOVE} WHERE {_PLACE} AND {_STATE} = 'UNKNOWN' RETURNING true"

LIST = f"""
SELECT {_COLUMNS} FROM apc_app.agent_effects
WHERE ($1::text IS NULL OR agent_id = $1) AND ($2::uuid IS NULL OR packet_id = $2)
  AND ($3::text[] IS NULL OR {_STATE} = ANY($3))
ORDER BY claimed_at DESC, packet_id, key LIMIT $4
"""

PURGE = f"""
{_REMOVE}
WHERE agent_id = $1 AND made_at IS NOT NULL AND expires_at < clock_timestamp() - $2::interval RETURNING true
"""


class PostgresEffectStore:
    """An EffectStore in Postgres. The pool stays the caller's.

    Args:
        pool: lent for single statements; none is held while an effect is made.
        is_patient: wait for a database that is away, because without it no effect may be made, and none that was made
            be forgotten; else raise StateUnavailable.
    """

    def __init__(self, pool: asyncpg.Pool, *, is_patient: bool = True) -> None:
        self._pool = pool
        self._is_patient = is_patient

    async def claim(self, claim: EffectClaim, lease: timedelta) -> EffectRecord:
        """Claim an effect."""
        made = (claim.claim_id, claim.session_id, claim.worker, claim.expires_at, lease)
        while True:
            # A claim whose commit was not seen is found again, and known by its claim_id.
            if (row := await self._row(CLAIM, claim.effect_id, *made)) is not None:
                return _record(row)
            if (kept := await self.get(claim.effect_id)) is not None:
                return kept

    async def renew(self, effect_id: EffectId, claim_id: UUID, lease: timedelta) -> None:
        """Renew the lease of a claim."""
        await self._row(RENEW, effect_id, claim_id, lease)

    async def record(
        self, effect_id: EffectId, claim_id: UUID, result: JsonValue, *, problem: str | None = None
    ) -> EffectRecord | None:
        """Record that the effect was made."""
        await self._row(RECORD, effect_id, claim_id, orjson.dumps(result).decode(), problem)
        return await self.get(effect_id)

    async def interrupt(self, effect_id: EffectId, claim_id: UUID, problem: str) -> None:
        """Record that the effect was begun and that no more is known."""
        await self._row(INTERRUPT, effect_id, claim_id, problem)

    async def withdraw(self, effect_id: EffectId, claim_id: UUID) -> None:
        """Delete a claim: its effect has not happened."""
        await self._row(WITHDRAW, effect_id, claim_id)

    async def settle(self, effect_id: EffectId, result: JsonValue, by: str) -> EffectRecord:
        """Settle an unknown effect: it has happened."""
        check_unsettled(effect_id, await self.get(effect_id))
        row = await self._row(SETTLE, effect_id, orjson.dumps(result).decode(), by)
        kept = await self.get(effect_id)
        # Without a row, it may be settled by an attempt of ours whose commit was not seen.
        if kept is not None and row is None and (kept.settled_by, kept.result) == (by, result):
            return kept
        if row is None or kept is None:
            check_unsettled(effect_id, kept)  # somebody else has settled it meanwhile
            return await self.settle(effect_id, result, by)
        return kept

    async def release(self, effect_id: EffectId) -> None:
        """Settle an unknown effect: it has not happened."""
        check_unsettled(effect_id, await self.get(effect_id), may_be_made=False)
        if await self._row(RELEASE, effect_id) is None and (kept := await self.get(effect_id)) is not None:
            check_unsettled(effect_id, kept, may_be_made=False)  # no row: an attempt of ours may have released it

    async def get(self, effect_id: EffectId) -> EffectRecord | None:
        """Return the effect."""
        row = await self._row(GET, effect_id)
        return None if row is None else _record(row)

    async def list(
        self,
        *,
        agent_id: str | None = None,
        packet_id: UUID | None = None,
        states: Collection[EffectState] | None = None,
        limit: int = 100,
    ) -> Sequence[EffectRecord]:
        """Return the newest effects."""
        names = None if states is None else [state.value for state in states]
        arguments = (agent_id, packet_id, names, min(limit, MAX_LISTED))
        rows = await self._patiently(lambda: self._pool.fetch(LIST, *arguments))
        return [_record(row) for row in rows]

    async def purge(self, agent_id: str, retention: timedelta) -> int:
        """Forget what is old."""
        rows = await self._patiently(lambda: self._pool.fetch(PURGE, agent_id, retention))
        return len(rows)

    async def _row(self, statement: str, effect_id: EffectId, *arguments: object) -> asyncpg.Record | None:
        place = (effect_id.packet_id, effect_id.agent_id, effect_id.key)
        return await self._patiently(lambda: self._pool.fetchrow(statement, *place, *arguments))

    async def _patiently(self, action: Callable[[], Awaitable[ResultT]]) -> ResultT:
        return await patiently(action, "effect store", is_patient=self._is_patient)


def _record(row: asyncpg.Record) -> EffectRecord:
    return EffectRecord(
        # The driver's own kind of UUID is not JSON, and a handler that waits has its errors recorded.
        effect_id=EffectId(UUID(int=row["packet_id"].int), row["agent_id"], row["key"]),
        claim_id=UUID(int=row["claim_id"].int),
        session_id=row["session_id"],
        worker=row["worker"],
        state=EffectState(row["state"]),
        claimed_at=row["claimed_at"],
        made_at=row["made_at"],
        result=None if row["result"] is None else orjson.loads(row["result"]),
        problem=row["problem"],
        settled_by=row["settled_by"],
    )

"""Makes effects once: claims before, records after, says so when it does not know, and reports that for the log."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID, uuid4

from pydantic import JsonValue

from apc_agents.effects import (
    UNSETTLED,
    EffectClaim,
    EffectError,
    EffectId,
    EffectNotMade,
    EffectRecord,
    EffectResultLost,
    EffectState,
    EffectStore,
    EffectUnknown,
    Scope,
)
from apc_agents.errors import AgentError, Reject, Retry, ValueUnserialisable
from apc_agents.json_values import result_value, storable
from apc_bus.concurrency import Backoff, running
from apc_bus.crash_points import crash_point
from apc_bus.telemetry import get_logger
from apc_contracts.errors import PacketRefused
from apc_contracts.wire.canonical import canonical_json
from apc_contracts.wire.receipts import (
    MAX_EFFECT_TEXT,
    EffectEntry,
    EffectReport,
    Receipt,
    ReceiptKind,
)

if TYPE_CHECKING:
    from apc_agents.outbox import ReceiptOutbox

# What the log keeps of an effect: entries, as receipts of the delivery for which it is made. The result stays here.


def effect_report(
    kept: EffectRecord, entry: EffectEntry, reference: str | None = None, note: str | None = None
) -> EffectReport:
    """Return an entry about an effect; one that says that it was made has the digest of its result."""
    return EffectReport(
        key=kept.effect_id.key,
        claim=kept.claim_id,
        entry=entry,
        digest=result_digest(kept) if entry in (EffectEntry.MADE, EffectEntry.SETTLED) else None,
        reference=None if reference is None else reference[:MAX_EFFECT_TEXT],
        note=None if note is None else note[:MAX_EFFECT_TEXT],
    )


def result_digest(kept: EffectRecord) -> str | None:
    """Return the SHA-256 of a result's RFC 8785 form; None for one that is lost, or has no such form."""
    if kept.state is not EffectState.MADE:
        return None
    try:
        return sha256(canonical_json(kept.result)).hexdigest()
    except PacketRefused:  # an integer beyond 2^53, which readers of JSON would round
        return None


class EffectLog:
    """Reports the effects of one delivery to the orchestrator, which logs them.

    Args:
        outbox: None for what has no deliveries: packets from the substrate, and between an agent's own modules.
        shard: of the delivery.
        attempt: of the delivery.
    """

    def __init__(self, outbox: "ReceiptOutbox | None" = None, shard: int = 0, attempt: int = 1) -> None:
        self._outbox = outbox
        self._shard = shard
        self._attempt = attempt

    async def claimed(self, kept: EffectRecord) -> None:
        """Report that an effect is about to be made; returns when the broker has confirmed it."""
        if self._outbox is not None:
            self._add(kept, effect_report(kept, EffectEntry.CLAIMED), kept.claimed_at)
            await self._outbox.confirmed()

    def tell(
        self, kept: EffectRecord, entry: EffectEntry, *, reference: str | None = None, note: str | None = None
    ) -> None:
        """Report what became of it; that travels with the next receipts of the delivery."""
        self._add(kept, effect_report(kept, entry, reference, note), kept.made_at or datetime.now(UTC))

    def found(self, kept: EffectRecord, reference: str | None = None) -> None:
        """Report what an earlier run has left: it may have died before it could. The log keeps each entry once."""
        self._add(kept, effect_report(kept, EffectEntry.CLAIMED), kept.claimed_at)
        if kept.settled_by is not None:
            self.tell(kept, EffectEntry.SETTLED, reference=reference, note=f"by {kept.settled_by}")
        elif kept.made_at is not None:
            self.tell(kept, EffectEntry.MADE, reference=reference, note=kept.problem)
        else:
            self.tell(kept, EffectEntry.UNKNOWN, note=kept.problem or f"{kept.worker} gave no sign of life")

    def _add(self, kept: EffectRecord, report: EffectReport, at: datetime) -> None:
        if self._outbox is None:
            return
        receipt = Receipt(
            packet_id=kept.effect_id.packet_id,
            session_id=kept.session_id,
            recipient=kept.effect_id.agent_id,
            kind=ReceiptKind.EFFECT,
            attempt=self._attempt,
            at=at,
            effect=report,
        )
        self._outbox.add(self._shard, receipt, may_linger=True)


UNLOGGED = EffectLog()

# Makes an effect.

MakeEffect = Callable[[], Any] | Callable[[], Awaitable[Any]]
Reference = Callable[[Any], str]
"""Returns what the other side calls an effect, from its result."""

NOT_MADE = (EffectNotMade, Retry, Reject)
"""What raises one of them says that nothing has happened."""
FIRST_LOOK = 0.02
"""Seconds after which a claim of somebody else is looked at again, at first."""
LAST_WORDS = timedelta(seconds=2)
"""How long a handler that is being cancelled may take to record what became of its effect."""
PURGE_INTERVAL = timedelta(hours=1)

ResultT = TypeVar("ResultT")

_being_made: ContextVar[frozenset[EffectId]] = ContextVar("_being_made", default=frozenset())
_log = get_logger("apc_agents")


class EffectMaker:
    """The effects of one agent in one process.

    Args:
        store: where they are kept.
        agent_id: whose effects.
        lease: how long a claim stays its holder's without a sign of life; then the effect is unknown.
        poll: the longest time between two looks at an effect that somebody else is making.
        retention: how long after its packet has expired an effect is kept.
    """

    def __init__(
        self, store: EffectStore, agent_id: str, *, lease: timedelta, poll: timedelta, retention: timedelta
    ) -> None:
        self._store = store
        self._agent_id = agent_id
        self._lease = lease
        self._poll = poll
        self._retention = retention
        self._worker = f"{agent_id}@{socket.gethostname()}:{os.getpid()}"

    async def once(
        self,
        scope: Scope,
        key: str,
        make: MakeEffect,
        not_made: tuple[type[Exception], ...] = (),
        *,
        log: EffectLog = UNLOGGED,
        reference: Reference | None = None,
    ) -> JsonValue:
        """Return the result of the effect: of making it now, or of the time when it was made.

        Raises:
            EffectUnknown, EffectResultLost: it is not made again.
            Exception: what `make` raised.
        """
        effect_id = scope.effect_id(key)
        if effect_id in _being_made.get():
            raise AgentError(f"{effect_id} is being made by the very function that asks for it: use another key")
        crash_point("worker.before_effect_claim")
        claim = EffectClaim(
            effect_id=effect_id,
            claim_id=uuid4(),
            session_id=scope.session_id,
            worker=self._worker,
            expires_at=scope.expires_at,
        )
        kept = await self._claimed(claim)
        if kept.claim_id != claim.claim_id:
            log.found(kept, _referred(reference, kept))
            return _result(kept)
        return await self._make(kept, make, (*NOT_MADE, *not_made), log, reference)

    async def settle(self, scope: Scope, key: str, result: Any, log: EffectLog = UNLOGGED) -> JsonValue:
        """Record that the effect has happened, and return its result. Raises EffectSettled, ValueUnserialisable."""
        value = result_value(result)
        kept = await self._store.settle(scope.effect_id(key), value, self._agent_id)
        log.tell(kept, EffectEntry.SETTLED)
        return kept.result

    async def release(self, scope: Scope, key: str, log: EffectLog = UNLOGGED) -> None:
        """Settle an unknown effect: it has not happened. Raises EffectSettled."""
        effect_id = scope.effect_id(key)
        kept = await self._store.get(effect_id)
        await self._store.release(effect_id)
        if kept is not None:
            log.tell(kept, EffectEntry.RELEASED)

    async def unsettled(self, scope: Scope, key: str) -> EffectError | None:
        """Return why an effect needs somebody's word: it is unknown, or its result was lost; None when it does not."""
        kept = await self._store.get(scope.effect_id(key))
        return None if kept is None or kept.state not in UNSETTLED else _error_of(kept)

    async def purge(self) -> None:
        """Forget, until cancelled, what nobody will ask for again."""
        while True:
            await self.purge_once()
            await asyncio.sleep(PURGE_INTERVAL.total_seconds())

    async def purge_once(self) -> None:
        """Forget what nobody will ask for again."""
        if count := await self._store.purge(self._agent_id, self._retention):
            _log.info("effects_purged", agent_id=self._agent_id, count=count)

    async def _claimed(self, claim: EffectClaim) -> EffectRecord:
        """Return the claim that stands, once nobody else is making the effect."""
        from apc_bus.last_resort import others_go_on

        backoff = Backoff(FIRST_LOOK, self._poll.total_seconds())
        while True:
            kept = await self._store.claim(claim, self._lease)
            if kept.claim_id == claim.claim_id or kept.state is not EffectState.RUNNING:
                return kept
            async with others_go_on():
                await backoff.wait()

    async def _make(
        self,
        own: EffectRecord,
        make: MakeEffect,
        not_made: tuple[type[Exception], ...],
        log: EffectLog,
        reference: Reference | None,
    ) -> JsonValue:
        effect_id, claim_id = own.effect_id, own.claim_id
        async with running(self._renew(effect_id, claim_id)):
            await self._report_claim(own, log)
            try:
                made = await _called(make, effect_id)
            except not_made as error:
                await _unless_cancelled(self._store.withdraw(effect_id, claim_id))
                log.tell(own, EffectEntry.RELEASED, note=_problem(error))
                raise
            except BaseException as error:
                # It may have happened before this was raised, or while it was cancelled.
                await _unless_cancelled(self._store.interrupt(effect_id, claim_id, _problem(error)))
                log.tell(own, EffectEntry.UNKNOWN, note=_problem(error))
                raise
            crash_point("worker.after_effect")
            kept = await _unless_cancelled(self._recorded(effect_id, claim_id, made))
        crash_point("worker.after_effect_record")
        if kept is None or kept.claim_id != claim_id:
            # Its lease had ended, and somebody's word that nothing had happened was wrong.
            log.tell(own, EffectEntry.MADE, note="made while it was released as not made")
        if kept is None:
            raise EffectUnknown(effect_id, own.claimed_at, self._worker, "made it while it was released as not made")
        if kept.claim_id == claim_id and kept.settled_by is None:
            log.tell(kept, EffectEntry.MADE, reference=_referred(reference, kept), note=kept.problem)
        else:
            _log.warning("effect_settled_while_made", effect=str(effect_id), settled_by=kept.settled_by)
        return _result(kept)

    async def _report_claim(self, own: EffectRecord, log: EffectLog) -> None:
        """Report the claim; where that is cancelled, nothing has happened yet."""
        try:
            await log.claimed(own)
        except BaseException:
            await _unless_cancelled(self._store.withdraw(own.effect_id, own.claim_id))
            log.tell(own, EffectEntry.RELEASED, note="the worker stopped before it began")
            raise
        crash_point("worker.after_effect_claim")

    async def _recorded(self, effect_id: EffectId, claim_id: UUID, made: Any) -> EffectRecord | None:
        try:
            return await self._store.record(effect_id, claim_id, result_value(made))
        except ValueUnserialisable as error:
            return await self._store.record(effect_id, claim_id, None, problem=storable(str(error)))

    async def _renew(self, effect_id: EffectId, claim_id: UUID) -> None:
        while True:
            await asyncio.sleep(self._lease.total_seconds() / 3)
            await self._store.renew(effect_id, claim_id, self._lease)


def is_making_effect() -> bool:
    """Return whether this is the function of a ctx.once."""
    return bool(_being_made.get())


async def _called(make: MakeEffect, effect_id: EffectId) -> Any:
    token = _being_made.set(_being_made.get() | {effect_id})
    try:
        # A function that blocks would keep the claim from being renewed.
        made = make() if iscoroutinefunction(make) else await asyncio.to_thread(make)
        return await made if isawaitable(made) else made
    finally:
        _being_made.reset(token)


async def _unless_cancelled(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Do it to its end even if the caller is cancelled meanwhile, as far as its last words may take."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,), timeout=LAST_WORDS.total_seconds())
        task.cancel()
        raise


def _result(kept: EffectRecord) -> JsonValue:
    if kept.state is not EffectState.MADE:
        raise _error_of(kept)
    return kept.result


def _error_of(kept: EffectRecord) -> EffectError:
    if kept.state is EffectState.RESULT_LOST:
        return EffectResultLost(kept.effect_id, kept.problem or "")
    return EffectUnknown(kept.effect_id, kept.claimed_at, kept.worker, kept.problem)


def _referred(reference: Reference | None, kept: EffectRecord) -> str | None:
    """Return the reference of what was made; None when the handler's function fails: the effect has happened."""
    if reference is None or kept.state is not EffectState.MADE:
        return None
    try:
        return storable(str(reference(kept.result)))
    except Exception as error:
        _log.warning("effect_reference_failed", effect=str(kept.effect_id), error=f"{type(error).__name__}: {error}")
        return None


def _problem(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "was cancelled while making it"
    return storable(f"{type(error).__name__} was raised: {error}")

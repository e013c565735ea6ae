"""Makes effects once: claims before, records after, says so when it does not know."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from datetime import timedelta
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypeVar
from uuid import UUID, uuid4

import structlog
from pydantic import JsonValue

from apc_agents.effects.store import (
    EffectClaim,
    EffectId,
    EffectNotMade,
    EffectRecord,
    EffectResultLost,
    EffectState,
    EffectStore,
    EffectUnknown,
)
from apc_agents.errors import AgentError, Reject, Retry
from apc_agents.tools import ValueUnserialisable, result_value, storable
from apc_bus.backoff import Backoff
from apc_bus.concurrency import running
from apc_bus.crash_points import crash_point
from apc_contracts.packet import Packet

MakeEffect = Callable[[], Any] | Callable[[], Awaitable[Any]]

MAX_KEY = 200
NOT_MADE = (EffectNotMade, Retry, Reject)
"""What raises one of them says that nothing has happened."""
FIRST_LOOK = 0.02
"""Seconds after which a claim of somebody else is looked at again, at first."""
LAST_WORDS = timedelta(seconds=2)
"""How long a handler that is being cancelled may take to record what became of its effect."""
PURGE_INTERVAL = timedelta(hours=1)

ResultT = TypeVar("ResultT")

_being_made: ContextVar[frozenset[EffectId]] = ContextVar("_being_made", default=frozenset())
_log = structlog.get_logger("apc_agents")


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
        self, packet: Packet, key: str, make: MakeEffect, not_made: tuple[type[Exception], ...] = ()
    ) -> JsonValue:
        """Return the result of the effect: of making it now, or of the time when it was made.

        Raises:
            EffectUnknown, EffectResultLost: it is not made again.
            Exception: what `make` raised.
        """
        effect_id = self.effect_id(packet, key)
        if effect_id in _being_made.get():
            raise AgentError(f"{effect_id} is being made by the very function that asks for it: use another key")
        crash_point("worker.before_effect_claim")
        claim = EffectClaim(
            effect_id=effect_id,
            claim_id=uuid4(),
            session_id=packet.trace.session_id,
            worker=self._worker,
            expires_at=packet.expires,
        )
        kept = await self._claimed(claim)
        if kept.claim_id != claim.claim_id:
            return _result(kept)
        return await self._make(kept, make, (*NOT_MADE, *not_made))

    async def settle(self, packet: Packet, key: str, result: Any) -> JsonValue:
        """Record that the effect has happened, and return its result. Raises EffectSettled, ValueUnserialisable."""
        value = result_value(result)
        return (await self._store.settle(self.effect_id(packet, key), value, self._agent_id)).result

    async def release(self, packet: Packet, key: str) -> None:
        """Settle an unknown effect: it has not happened. Raises EffectSettled."""
        await self._store.release(self.effect_id(packet, key))

    def effect_id(self, packet: Packet, key: str) -> EffectId:
        """Return the effect of this name. Raises AgentError for what is no key."""
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY or not key.isprintable():
            raise AgentError(f"{key!r} is no key of an effect: give 1 to {MAX_KEY} printable characters")
        return EffectId(packet.packet_id, self._agent_id, key)

    async def purge(self) -> None:
        """Forget, until cancelled, what nobody will ask for again."""
        while True:
            if count := await self._store.purge(self._agent_id, self._retention):
                _log.info("effects_purged", agent_id=self._agent_id, count=count)
            await asyncio.sleep(PURGE_INTERVAL.total_seconds())

    async def _claimed(self, claim: EffectClaim) -> EffectRecord:
        """Return the claim that stands, once nobody else is making the effect."""
        backoff = Backoff(FIRST_LOOK, self._poll.total_seconds())
        while True:
            kept = await self._store.claim(claim, self._lease)
            if kept.claim_id == claim.claim_id or kept.state is not EffectState.RUNNING:
                return kept
            await backoff.wait()

    async def _make(self, own: EffectRecord, make: MakeEffect, not_made: tuple[type[Exception], ...]) -> JsonValue:
        effect_id, claim_id = own.effect_id, own.claim_id
        async with running(self._renew(effect_id, claim_id)):
            try:
                made = await _called(make, effect_id)
            except not_made:
                await _unless_cancelled(self._store.withdraw(effect_id, claim_id))
                raise
            except BaseException as error:
                # It may have happened before this was raised, or while it was cancelled.
                await _unless_cancelled(self._store.interrupt(effect_id, claim_id, _problem(error)))
                raise
            crash_point("worker.after_effect")
            kept = await _unless_cancelled(self._recorded(effect_id, claim_id, made))
        crash_point("worker.after_effect_record")
        if kept is None:
            # Its lease had ended, and somebody's word that nothing had happened was wrong.
            raise EffectUnknown(effect_id, own.claimed_at, self._worker, "made it while it was released as not made")
        if kept.claim_id != claim_id or kept.settled_by is not None:
            _log.warning("effect_settled_while_made", effect=str(effect_id), settled_by=kept.settled_by)
        return _result(kept)

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
    match kept.state:
        case EffectState.MADE:
            return kept.result
        case EffectState.RESULT_LOST:
            raise EffectResultLost(kept.effect_id, kept.problem or "")
        case _:
            raise EffectUnknown(kept.effect_id, kept.claimed_at, kept.worker, kept.problem)


def _problem(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "was cancelled while making it"
    return storable(f"{type(error).__name__} was raised: {error}")

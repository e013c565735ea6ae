"""Timers that an agent sets: the WAKE that asks the gate for one."""

from datetime import datetime, timedelta

from apc_agents.emitting.draft import Draft
from apc_agents.errors import AgentError
from apc_agents.waiting.inquiry import LONGEST_TTL
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.payloads.session_signals import MAX_KEY, WakeSpec
from apc_contracts.vocabulary import ORCHESTRATOR, Signal

_MILLISECOND = timedelta(milliseconds=1)


def wake_draft(key: str, after: timedelta | None, at: datetime | None) -> Draft:
    """Return the WAKE that sets a timer. Raises AgentError for a key or a time that is none."""
    if not 1 <= len(key) <= MAX_KEY:
        raise AgentError(f"ctx.wake: the key has {len(key)} characters: give 1 to {MAX_KEY}")
    if (after is None) == (at is None):
        raise AgentError("ctx.wake takes one time: after= or at=")
    if at is not None and at.tzinfo is None:
        raise AgentError("ctx.wake: at has no time zone: give one, as in datetime.now(UTC)")
    if after is not None and after < _MILLISECOND:
        raise AgentError(f"ctx.wake: after={after} is less than a millisecond: give a time to wait")
    spec = WakeSpec(key=key, at=at, after_ms=None if after is None else round(after / _MILLISECOND))
    return Draft(SignalPayload(signal=Signal.WAKE, wake=spec), to=ORCHESTRATOR, ttl=LONGEST_TTL)

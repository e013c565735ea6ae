"""A schedule of an agent: which of its firings are due, and the two packets of each."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile
from typing import Final
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict

from apc_agents.emitting.draft import Draft
from apc_agents.handling.inquiry import LONGEST_TTL
from apc_agents.scheduling.cron import CronLine
from apc_agents.typed import message
from apc_contracts.identity.ids import keyed_id
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.vocabulary import ORCHESTRATOR, RunPhase, Signal

TICK_SCHEMA: Final = "tick/1"
MISFIRE_GRACE = timedelta(minutes=1)
"""A firing that is later than this was missed."""
MAX_CAUGHT_UP = 1_000
"""Firings that `all` makes up for; older ones are left out."""


class Misfire(StrEnum):
    """Which firings still come, of those that were missed because no process of the agent ran."""

    SKIP = "skip"
    """None is made up for."""
    ONCE = "once"
    """The newest one comes."""
    ALL = "all"
    """Each comes, the oldest first."""


@message(TICK_SCHEMA)
class Tick(BaseModel):
    """A firing: the schedule's name, and the instant at which it was due, in UTC."""

    model_config = ConfigDict(frozen=True)

    name: str
    instant: AwareDatetime


@dataclass(frozen=True, slots=True)
class Due:
    """The firings that are due, the oldest first, and up to when that accounts for all of them."""

    firings: tuple[datetime, ...]
    until: datetime
    left_out: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """When an agent gets Ticks, and the session in which each of them comes."""

    name: str
    cron: CronLine
    misfire: Misfire
    spec: TaskSessionSpec

    def due(self, fired_until: datetime, now: datetime) -> Due:
        """Return what is due after `fired_until`, up to now."""
        missed = takewhile(lambda firing: firing > fired_until, self.cron.back_from(now))
        newest = tuple(islice(missed, MAX_CAUGHT_UP + 1 if self.misfire is Misfire.ALL else 1))
        if not newest:
            return Due((), fired_until)
        if self.misfire is Misfire.SKIP and now - newest[0] > MISFIRE_GRACE:
            return Due((), newest[0])
        return Due(newest[:MAX_CAUGHT_UP][::-1], newest[0], len(newest) > MAX_CAUGHT_UP)


def tick_id(agent_id: str, tick: Tick) -> UUID:
    """Return the id of a Tick's MESSAGE: every process of the agent derives the same."""
    return _id(agent_id, tick, "tick")


def start_draft(agent_id: str, schedule: Schedule, tick: Tick) -> Draft:
    """Return the START of the session in which a Tick comes."""
    return Draft(
        SignalPayload(signal=Signal.START, session=schedule.spec),
        to=ORCHESTRATOR,
        session_id=str(_id(agent_id, tick, "session")),
        run_phase=RunPhase.EXECUTION,
        ttl=LONGEST_TTL,
        packet_id=_id(agent_id, tick, "start"),
    )


def tick_draft(agent_id: str, tick: Tick, start: Packet) -> Draft:
    """Return the MESSAGE of a Tick, which the agent sends to itself."""
    return Draft(
        tick,
        to=agent_id,
        session_id=start.trace.session_id,
        run_phase=RunPhase.EXECUTION,
        ttl=LONGEST_TTL,
        packet_id=tick_id(agent_id, tick),
        parent=start,
    )


def _id(agent_id: str, tick: Tick, what: str) -> UUID:
    return keyed_id(agent_id, "every", tick.name, tick.instant.astimezone(UTC).isoformat(), what)

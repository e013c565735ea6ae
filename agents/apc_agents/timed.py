"""Handlers that time calls: timers that the agent has set, and cron lines."""

from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

from apc_agents.errors import AgentError, AgentInvalid
from apc_agents.handler_table import TICK_PREFIX, WAKE_PREFIX, HandlerEntry, HandlerTable
from apc_agents.scheduling.defining import ScheduleOptions, make_schedule, tick_handler
from apc_agents.scheduling.schedule import Schedule
from apc_agents.signature import check_handler
from apc_contracts.identity.registry import Right
from apc_contracts.packet import MAX_RETRY_LIMIT
from apc_contracts.vocabulary import PacketType, Signal

HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[Any]])


class TimedHandlers:
    """The part of an `Agent` that registers such handlers."""

    agent_id: str
    rights: frozenset[Right]
    schedules: dict[str, Schedule]
    """What `every` has registered, by name."""
    _handlers: HandlerTable

    def schedule(self, name: str) -> Schedule:
        """Return a schedule of the agent by its name. Raises AgentError when it has no such schedule."""
        if name not in self.schedules:
            raise AgentError(
                f"agent {self.agent_id} has no schedule {name!r}; it has {', '.join(self.schedules) or 'none'}"
            )
        return self.schedules[name]

    def on_wake(self, key: str | None = None) -> Callable[[HandlerT], HandlerT]:
        """Register `async def woken(wake: Packet[SignalPayload], ctx: HandlerContext)`: gets what `ctx.wake` has set.

        Args:
            key: of the timer; None = those without their own handler.

        Raises:
            AgentInvalid: the function does not fit, or another handles this key already.
        """
        kind: Signal | str = Signal.WAKE if key is None else f"{WAKE_PREFIX}{key}"

        def register(function: HandlerT) -> HandlerT:
            check_handler(function, PacketType.SIGNAL)
            entry = HandlerEntry(function, PacketType.SIGNAL, kind)
            self._handlers.add(entry, f"on_wake handlers for {key or 'every key'}")
            return function

        return register

    def every(
        self,
        line: str,
        *,
        timezone: str = "UTC",
        name: str | None = None,
        misfire: str = "once",
        members: Iterable[str] = (),
        contract: str = "task",
        deadline: timedelta = timedelta(days=1),
        retries: int = 0,
    ) -> Callable[[HandlerT], HandlerT]:
        """Register `async def handler(tick: Tick, ctx: HandlerContext)`: called at the times of a cron line.

        Each firing opens a session, in which the agent decides, and comes once, however many processes of the agent run
        (docs/how-to/timers.md). The agent needs the right `schedule`.

        Args:
            line: minute, hour, day of month, month and day of week, such as `0 7 * * 1-5`.
            timezone: in which the line is read, such as `Europe/Berlin`.
            name: of the schedule, unique in the agent; default the function's.
            misfire: what comes of firings at which no process ran: `skip` none, `once` the newest, `all` each.
            members: other agents that take part in the sessions.
            contract: of the sessions; one of the coordinator `task`.
            deadline: of each session.
            retries: as of `on`.

        Raises:
            AgentInvalid: the function does not fit, the line or the zone is none, or the line never fires.
        """
        check_retries(retries)

        def register(function: HandlerT) -> HandlerT:
            called = name or str(getattr(function, "__name__", ""))
            options = ScheduleOptions(timezone, misfire, tuple(members), contract, deadline)
            schedule = make_schedule(self.agent_id, called, line, options)
            handler = tick_handler(self.agent_id, function)
            entry = HandlerEntry(handler, PacketType.MESSAGE, f"{TICK_PREFIX}{called}", retries=retries)
            self._handlers.add(entry, f"schedules {called!r}")
            self.schedules[called] = schedule
            self.rights |= {Right.SCHEDULE}
            return function

        return register


def check_retries(retries: int) -> None:
    """Raise AgentInvalid for a number of retries that no packet may have."""
    if not 0 <= retries <= MAX_RETRY_LIMIT:
        raise AgentInvalid(f"retries {retries} is outside 0..{MAX_RETRY_LIMIT}")

"""The calls by which a handler waits: for people, for other agents, for a time."""

from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from pydantic import BaseModel, JsonValue

from apc_agents.emitting.draft import Destination
from apc_agents.errors import AgentError
from apc_agents.handling.session_facts import SessionFacts
from apc_agents.waiting.approval import Approval, PeopleAsked
from apc_agents.waiting.inquiry import Inquiry, Pending
from apc_agents.waiting.request import AgentAsked, ModelT
from apc_agents.waiting.waking import wake_draft
from apc_contracts.payloads.questions import OnTimeout

WaitT = TypeVar("WaitT")
REQUEST_TIMEOUT: Final = timedelta(minutes=1)


class WaitingCalls(SessionFacts):
    """What a handler may wait for."""

    def ask(
        self,
        question: str,
        *,
        to: Destination,
        timeout: timedelta,
        on_timeout: str = "deny",
        content: dict[str, JsonValue] | None = None,
    ) -> Pending[Approval]:
        """Ask people, and wait for the first answer: for days, and over restarts (docs/how-to/approvals.md).

        The handler ends at `await ctx.ask(...)`. With the answer it runs again from its first line, over the same
        packet: what it did through `ctx` so far returns what is recorded, without any effect, and `ctx.state` is as it
        was then.

        Args:
            question: what they read; up to 8,192 characters.
            to: people by their ids, or everybody with a role: `Role("release-manager")`.
            timeout: how long to wait, within the session's deadline.
            on_timeout: `deny` returns a denial when nobody has answered in time, `raise` raises AskTimeout.
            content: data to be shown with the question.

        Raises:
            AskTimeout: with on_timeout="raise".
            EmitRefused: the gate refuses the question: nobody has the role, or the session ends before the timeout.
            AgentError: the handler cannot wait here.
        """
        return self._wait(PeopleAsked(question, to, timeout, OnTimeout(on_timeout), content))

    def request(
        self, content: BaseModel, *, to: Destination, returns: type[ModelT], timeout: timedelta = REQUEST_TIMEOUT
    ) -> Pending[ModelT]:
        """Ask another agent, and wait for its answer, as `ask` does.

        Its handler of the content's model runs; the first result of type `returns` is the answer.

        Args:
            content: a model with `@message`.
            to: an agent, several, or `Role("x")` for the members with a role; the first answer counts.
            returns: a model with `@message`.
            timeout: how long to wait, within the session's deadline; default a minute.

        Raises:
            AskTimeout: nobody has answered in time.
            RequestFailed: the agent refused the request, failed, or returned no such result.
            EmitRefused, AgentError: as `ask`.
        """
        return self._wait(AgentAsked(content, to, returns, timeout))

    async def gather(self, *waits: Pending[Any]) -> tuple[Any, ...]:
        """Ask several at once: `a, b = await ctx.gather(ctx.ask(...), ctx.request(...))`.

        The handler goes on when the last of them has ended. It is one wait of the 64.

        Raises:
            AskTimeout, RequestFailed, EmitRefused: the first that failed, in the order given.
            AgentError: the handler cannot wait here, or this is nothing to wait for.
        """
        inquiries = [one.take() for one in waits if isinstance(one, Pending)]
        for one in waits:
            if not isinstance(one, Pending):
                raise AgentError(f"ctx.gather takes ctx.ask(...) and ctx.request(...), not {type(one).__name__}")
        return tuple(await self._invocation.wait(inquiries)) if inquiries else ()

    async def wake(self, key: str, *, after: timedelta | None = None, at: datetime | None = None) -> None:
        """Set a durable timer, which comes back to `@agent.on_wake(key)` once, over restarts (docs/how-to/timers.md).

        A pending timer of this agent with the same key, in the same session, is replaced.

        Args:
            key: names the timer; 1 to 200 characters.
            after: how long from now on; a pause of the session is added.
            at: when, with a time zone; a pause does not move it. One that has passed goes off at once.

        Raises:
            AgentError: not one of `after` and `at`, or `at` has no time zone.
            EmitRefused, EmitUnconfirmed: as `emit`. A time beyond the session's deadline, and more timers than
                `limits.wakes` of the contract, are refused by the gate: `on_refused` is told.
        """
        await self._invocation.emit(wake_draft(key, after, at))

    def _wait(self, inquiry: Inquiry[WaitT]) -> Pending[WaitT]:
        return Pending(inquiry, self._invocation.wait)

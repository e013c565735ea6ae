"""ASYNC actions in a real worker: started at once, run beside the handlers, told of in packets, given back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from pydantic import JsonValue
from tests.minds.workshop import Workshop, in_context, response, tool
from tests.support.waiting import until

from apc_agents import EmitUnconfirmed
from apc_agents.task_port import Task, TaskEvent, TaskSpec, TaskStatus, TaskStore
from apc_bus.concurrency import running
from apc_contracts import ActionType, SecurityLevel
from apc_minds.actions import (
    ActionExecutor,
    Effect,
    ToolCall,
    ToolRegistry,
)
from apc_minds.tasks.in_memory import InMemoryTaskStore
from apc_minds.tasks.runner import TaskRunner


def has_ended(store: TaskStore, *task_ids: str) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        tasks = {str(task.task_id): task for task in await store.list()}
        return all(tasks[task_id].finished_at is not None for task_id in task_ids)

    return holds


class Shop:
    """A runner over tasks in memory, and what it announced."""

    def __init__(self, tools: ToolRegistry) -> None:
        self.tools = tools
        self.store = InMemoryTaskStore()
        self.told: list[TaskEvent] = []
        self.refusals: list[Exception] = []

    async def start(self, *actions: dict[str, Any], **settings: Any) -> list[Task]:
        report = await ActionExecutor(self.tools).run(
            response(*actions), context=in_context(tasks=self.store, **settings)
        )
        started = set(report.task_ids.values())
        return [task for task in reversed(await self.store.list()) if str(task.task_id) in started]

    @asynccontextmanager
    async def open(self, **settings: Any) -> AsyncIterator[None]:
        runner = TaskRunner(
            "builder-1", self.tools, self.store, self._announce, poll=timedelta(seconds=0.02), **settings
        )
        async with running(runner.run()):
            yield

    async def ended(self, *tasks: Task) -> list[Task]:
        await until(has_ended(self.store, *(str(task.task_id) for task in tasks)))
        return [await self.store.get(task.task_id) for task in tasks]

    async def _announce(self, event: TaskEvent) -> None:
        if self.refusals:
            raise self.refusals.pop()
        self.told.append(event)


async def test_a_task_that_fails_says_why_and_cancels_what_needs_it(workshop: Workshop) -> None:
    @workshop.tools.tool()
    async def spoil() -> None:
        raise ValueError("disk\0full")

    shop = Shop(workshop.tools)
    tasks = await shop.start(
        tool("spoil", execution="ASYNC", action_id="a"),
        tool("note", execution="ASYNC", depends_on=["a"]),
        tool("note", execution="ASYNC", action_id="c", params={"value": {"x": 1}}),
        tool("note", execution="ASYNC", params={"value": "${{results.c.y}}"}),
        tool("add", execution="ASYNC", params={"a": "${{results.c.x}}"}),
    )
    async with shop.open():
        ends = await shop.ended(*tasks)
    assert [(end.status, end.error) for end in ends] == [
        (TaskStatus.FAILED, "ValueError: disk\ufffdfull"),
        (TaskStatus.CANCELLED, "it needs a, which failed: ValueError: disk\ufffdfull"),
        (TaskStatus.SUCCEEDED, None),
        (TaskStatus.FAILED, "${{results.c.y}} points nowhere: results.c has no 'y'; its names are x"),
        (TaskStatus.SUCCEEDED, None),
    ]
    assert ends[-1].result == 2


async def test_a_task_that_raises_what_is_no_exception_has_failed(workshop: Workshop) -> None:
    class Panic(BaseException):
        """As native code raises it."""

    @workshop.tools.tool()
    async def spoil() -> None:
        raise Panic("no")

    shop = Shop(workshop.tools)
    tasks = await shop.start(tool("spoil", execution="ASYNC"))
    async with shop.open():
        (end,) = await shop.ended(*tasks)
    assert (end.status, end.error) == (TaskStatus.FAILED, "Panic: no")


async def test_a_task_over_its_time_limit_has_failed(workshop: Workshop) -> None:
    @workshop.tools.tool(time_limit=timedelta(milliseconds=10))
    async def wait() -> None:
        await asyncio.Event().wait()

    shop = Shop(workshop.tools)
    tasks = await shop.start(tool("wait", execution="ASYNC"))
    async with shop.open():
        (end,) = await shop.ended(*tasks)
    assert (end.status, end.error) == (TaskStatus.FAILED, "it was cancelled at its time limit of 0.01 s")


async def test_a_running_task_is_cancelled_with_its_reason(workshop: Workshop) -> None:
    ends: list[str] = []
    started = asyncio.Event()

    @workshop.tools.tool()
    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cleaned up")

    shop = Shop(workshop.tools)
    tasks = await shop.start(tool("wait", execution="ASYNC"))
    async with shop.open():
        await started.wait()
        await shop.store.cancel(tasks[0].task_id, "not needed")
        (end,) = await shop.ended(*tasks)
    assert (end.status, end.error, ends) == (TaskStatus.CANCELLED, "not needed", ["cleaned up"])


async def test_a_worker_that_stops_gives_its_tasks_back(workshop: Workshop) -> None:
    attempts: list[str | None] = []
    started = asyncio.Event()

    @workshop.tools.tool()
    async def wait(call: ToolCall) -> int:
        attempts.append(call.task_id)
        started.set()
        if len(attempts) == 1:
            await asyncio.Event().wait()
        return len(attempts)

    shop = Shop(workshop.tools)
    tasks = await shop.start(tool("wait", execution="ASYNC"))
    async with shop.open():
        await started.wait()
    (open_task,) = await shop.store.list()
    assert (open_task.status, open_task.lost_leases) == (TaskStatus.PENDING, 0)
    async with shop.open():
        (end,) = await shop.ended(*tasks)
    assert (end.result, end.attempt, len(set(attempts))) == (2, 2, 1)


async def test_a_worker_that_lost_its_lease_ends_its_attempt(workshop: Workshop) -> None:
    ends: list[str] = []
    started = asyncio.Event()

    async def never(effect: Effect) -> JsonValue:
        raise AssertionError("a lost attempt makes no effect")

    @workshop.tools.tool()
    async def wait(call: ToolCall) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")

    shop = Shop(workshop.tools)
    (task,) = await shop.start(tool("wait", execution="ASYNC"))
    async with shop.open():
        await started.wait()
        await shop.store.release(task.task_id, 1)
        stolen = await shop.store.claim("builder-1", "somebody else", timedelta(minutes=1))
        assert stolen is not None

        async def has_let_go() -> bool:
            return ends == ["cancelled"]

        await until(has_let_go)
    kept = await shop.store.get(task.task_id)
    assert (kept.status, kept.worker, kept.attempt) == (TaskStatus.RUNNING, "somebody else", 2)


async def test_no_more_tasks_run_at_a_time_than_allowed(workshop: Workshop) -> None:
    now, most = 0, 0

    @workshop.tools.tool()
    async def work() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1

    shop = Shop(workshop.tools)
    tasks = await shop.start(*[tool("work", execution="ASYNC") for _ in range(6)])
    async with shop.open(concurrency=2):
        await shop.ended(*tasks)
    assert most <= 2


async def test_what_cannot_be_told_now_is_told_later_and_in_order(workshop: Workshop) -> None:
    shop = Shop(workshop.tools)
    shop.refusals = [EmitUnconfirmed("id", "no broker"), EmitUnconfirmed("id", "no broker")]
    await shop.start(tool("note", execution="ASYNC"))
    async with shop.open():

        async def is_told() -> bool:
            return [event.number for event in shop.told] == [1, 2, 3]

        await until(is_told)
    assert [event.document["status"] for event in shop.told] == ["PENDING", "RUNNING", "SUCCEEDED"]
    assert await shop.store.unannounced("builder-1") == []


@pytest.mark.parametrize("is_gone", [True, False])
async def test_tools_that_have_changed_since_are_not_run(workshop: Workshop, is_gone: bool) -> None:
    shop = Shop(workshop.tools)
    tasks = await shop.start(tool("note", execution="ASYNC"))
    shop.tools = ToolRegistry()
    if not is_gone:

        @shop.tools.tool(security_level="admin")
        async def note(value: Any = None) -> None: ...

    async with shop.open():
        (end,) = await shop.ended(*tasks)
    words = "there is no tool 'note' any more" if is_gone else "'note' needs the security_level admin now, this is user"
    assert (end.status, end.error) == (TaskStatus.FAILED, words)


async def test_a_task_that_cannot_start_starts_nothing(workshop: Workshop) -> None:
    shop = Shop(workshop.tools)
    report = await ActionExecutor(workshop.tools).run(
        response(
            tool("note", action_id="a", params={"value": "text"}),
            tool("add", execution="ASYNC", params={"a": "${{results.a}}"}),
            tool("fail", action_id="b"),
            tool("note", execution="ASYNC", depends_on=["b"]),
        ),
        context=in_context(tasks=shop.store),
    )
    assert [one.status.value for one in report.observations] == ["SUCCESS", "ERROR", "ERROR", "CANCELLED"]
    assert await shop.store.list() == []


def test_a_spec_survives_its_json() -> None:
    spec = TaskSpec(
        action_id="a", action="b", type=ActionType.TOOL, security_level=SecurityLevel.USER, params={"x": [1.5]}
    )
    assert TaskSpec.model_validate_json(spec.model_dump_json()) == spec

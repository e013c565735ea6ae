"""One suite for every task store: leases, fencing, dependencies, effects, cancelling, events."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import JsonValue

from apc_agents.task_port import MAX_LOST_LEASES, Claim, NewTask, Task, TaskSpec, TaskStatus, TaskStore
from apc_contracts import ActionType, SecurityLevel
from apc_minds.actions import Effect, TaskLost, TaskUnknown
from apc_minds.tasks.in_memory import InMemoryTaskStore

LEASE = timedelta(minutes=1)
NO_LEASE = timedelta(0)
AGENT = "builder-1"


def spec(action_id: str = "build", **fields: Any) -> TaskSpec:
    given = {"action": "build_tool", "type": ActionType.TOOL, "security_level": SecurityLevel.USER}
    return TaskSpec(**{"action_id": action_id, **given, **fields})


async def added(store: TaskStore, *needs: Task, agent_id: str = AGENT, session_id: str = "s-1", **fields: Any) -> Task:
    depends_on = tuple(need.task_id for need in needs)
    return await store.add(NewTask(uuid4(), agent_id, session_id, spec(**fields), depends_on))


async def claimed(store: TaskStore, lease: timedelta = LEASE, agent_id: str = AGENT) -> Claim:
    claim = await store.claim(agent_id, "worker-1", lease)
    assert claim is not None
    return claim


async def succeed(store: TaskStore, claim: Claim, result: JsonValue = None) -> None:
    await store.finish(claim.task.task_id, claim.task.attempt, TaskStatus.SUCCEEDED, result=result)


async def told(store: TaskStore, agent_id: str = AGENT) -> list[tuple[str, Any]]:
    return [(str(one.document["action_id"]), one.document["status"]) for one in await store.unannounced(agent_id)]


class TaskStoreSuite:
    """What a TaskStore promises."""

    async def test_a_task_runs_and_its_result_is_kept(self, store: TaskStore) -> None:
        task = await added(store, params={"target": "//main"})
        assert (task.status, task.attempt, task.progress) == (TaskStatus.PENDING, 0, 0.0)
        claim = await claimed(store)
        assert (claim.task.task_id, claim.task.status, claim.task.attempt) == (task.task_id, TaskStatus.RUNNING, 1)
        assert claim.task.spec == task.spec
        await store.progress(task.task_id, 1, 0.5, "half")
        half = await store.get(task.task_id)
        assert (half.progress, half.note, half.worker) == (0.5, "half", "worker-1")
        await succeed(store, claim, {"files": ["a", 1.5, None]})
        done = await store.get(task.task_id)
        assert (done.status, done.result, done.progress) == (TaskStatus.SUCCEEDED, {"files": ["a", 1.5, None]}, 1.0)
        assert done.created_at <= (done.started_at or done.created_at) <= (done.finished_at or done.created_at)
        assert await store.claim(AGENT, "worker-1", LEASE) is None

    async def test_a_task_that_is_there_already_stands(self, store: TaskStore) -> None:
        first = await added(store, params={"target": "a"})
        second = await store.add(NewTask(first.task_id, AGENT, "s-1", spec(params={"target": "b"})))
        assert second == first

    async def test_tasks_run_oldest_first_and_for_their_agent_only(self, store: TaskStore) -> None:
        first, second = await added(store), await added(store)
        other = await added(store, agent_id="other-1")
        claims = [await claimed(store), await claimed(store)]
        assert [claim.task.task_id for claim in claims] == [first.task_id, second.task_id]
        assert await store.claim(AGENT, "worker-1", LEASE) is None
        assert (await claimed(store, agent_id="other-1")).task.task_id == other.task_id

    async def test_one_question_finds_the_agents_that_have_something_to_do(self, store: TaskStore) -> None:
        names = (AGENT, "other-1", "idle-1")
        assert set(await store.with_work(names)) == set()
        await added(store)
        await added(store, agent_id="other-1")
        await added(store, agent_id="not-asked-1")
        assert set(await store.with_work(names)) == {AGENT, "other-1"}, "they wait"

        async def tell_all() -> None:
            for name in names:
                for event in await store.unannounced(name):
                    await store.announced(event.task_id, event.number)

        ended, lost = await claimed(store, NO_LEASE), await claimed(store, agent_id="other-1")
        await tell_all()
        assert set(await store.with_work(names)) == {AGENT}, "its lease has ended"
        await store.renew(ended.task.task_id, 1, LEASE)
        assert set(await store.with_work(names)) == set(), "both run"
        await store.cancel(lost.task.task_id, "enough")
        await tell_all()
        assert set(await store.with_work(names)) == {"other-1"}, "it is to be cancelled"
        await store.finish(lost.task.task_id, 1, TaskStatus.CANCELLED, error="enough")
        assert set(await store.with_work(names)) == {"other-1"}, "that is to be told"
        await tell_all()
        assert set(await store.with_work(names)) == set()

    async def test_side_by_side_claims_take_each_task_once(self, store: TaskStore) -> None:
        tasks = {(await added(store)).task_id for _ in range(6)}
        claims = await asyncio.gather(*(store.claim(AGENT, f"worker-{n}", LEASE) for n in range(8)))
        taken = [claim.task.task_id for claim in claims if claim is not None]
        left = [claim.task.task_id for claim in [await store.claim(AGENT, "late", LEASE)] * 1 if claim is not None]
        assert len(taken) == len(set(taken))
        assert set(taken) | set(left) <= tasks

    async def test_a_lease_that_ended_is_taken_over_and_the_former_attempt_is_fenced(self, store: TaskStore) -> None:
        task = await added(store)
        await claimed(store, NO_LEASE)
        second = await claimed(store)
        assert (second.task.attempt, second.task.lost_leases) == (2, 1)
        for write in (
            store.progress(task.task_id, 1, 0.5, None),
            store.finish(task.task_id, 1, TaskStatus.SUCCEEDED, result="late"),
            store.renew(task.task_id, 1, LEASE),
            store.once(task.task_id, 1, "effect", never),
        ):
            with pytest.raises(TaskLost):
                await write
        await store.release(task.task_id, 1)
        await succeed(store, second, "in time")
        assert (await store.get(task.task_id)).result == "in time"

    async def test_a_renewed_lease_keeps_the_task(self, store: TaskStore) -> None:
        task = await added(store)
        await claimed(store, NO_LEASE)
        assert await store.renew(task.task_id, 1, LEASE) is None
        assert await store.claim(AGENT, "worker-2", LEASE) is None

    async def test_a_released_task_runs_again_at_once_and_no_worker_is_blamed(self, store: TaskStore) -> None:
        task = await added(store)
        await claimed(store)
        await store.release(task.task_id, 1)
        again = await claimed(store)
        assert (again.task.attempt, again.task.lost_leases) == (2, 0)

    async def test_a_task_whose_workers_always_die_is_given_up(self, store: TaskStore) -> None:
        task = await added(store)
        for _ in range(MAX_LOST_LEASES):
            await claimed(store, NO_LEASE)
        assert await store.claim(AGENT, "worker-1", LEASE) is None
        given_up = await store.get(task.task_id)
        assert given_up.status is TaskStatus.FAILED
        assert given_up.error == f"its worker died {MAX_LOST_LEASES} times while it ran: it may be what kills it"

    async def test_a_task_waits_for_those_that_it_needs_and_gets_their_results(self, store: TaskStore) -> None:
        first, second = await added(store, action_id="a"), await added(store, action_id="b")
        awaited = {"a": first.task_id, "b": second.task_id}
        last = await added(store, first, second, action_id="c", awaited=awaited)
        results: list[JsonValue] = [1, [2]]
        for result in results:
            claim = await claimed(store)
            assert claim.task.task_id != last.task_id
            await succeed(store, claim, result)
        claim = await claimed(store)
        assert (claim.task.task_id, claim.results) == (last.task_id, {"a": 1, "b": [2]})

    async def test_a_failure_cancels_what_needs_it_with_a_reason(self, store: TaskStore) -> None:
        first = await added(store, action_id="a")
        second = await added(store, first, action_id="b")
        third = await added(store, second, action_id="c")
        claim = await claimed(store)
        await store.finish(first.task_id, claim.task.attempt, TaskStatus.FAILED, error="disk full")
        assert await store.claim(AGENT, "worker-1", LEASE) is None
        ends = [await store.get(task.task_id) for task in (second, third)]
        assert [(end.status, end.error) for end in ends] == [
            (TaskStatus.CANCELLED, "it needs a, which failed: disk full"),
            (TaskStatus.CANCELLED, "it needs b, which was cancelled: it needs a, which failed: disk full"),
        ]

    async def test_a_task_that_nobody_runs_is_cancelled_at_once(self, store: TaskStore) -> None:
        task = await added(store)
        assert (await store.cancel(task.task_id, "not needed")).status is TaskStatus.CANCELLED
        assert await store.claim(AGENT, "worker-1", LEASE) is None
        assert (await store.cancel(task.task_id, "again")).error == "not needed"

    async def test_a_running_task_is_cancelled_by_its_worker(self, store: TaskStore) -> None:
        task = await added(store)
        await claimed(store)
        asked = await store.cancel(task.task_id, "not needed")
        assert (asked.status, asked.cancel_reason) == (TaskStatus.RUNNING, "not needed")
        assert await store.renew(task.task_id, 1, LEASE) == "not needed"

    async def test_a_task_of_a_dead_worker_is_cancelled_at_once(self, store: TaskStore) -> None:
        task = await added(store)
        await claimed(store, NO_LEASE)
        assert (await store.cancel(task.task_id, "not needed")).status is TaskStatus.CANCELLED

    async def test_a_cancelled_task_whose_worker_died_is_not_run_again(self, store: TaskStore) -> None:
        task = await added(store)
        await claimed(store)
        await store.cancel(task.task_id, "not needed")
        await store.renew(task.task_id, 1, NO_LEASE)
        assert await store.claim(AGENT, "worker-1", LEASE) is None
        ended = await store.get(task.task_id)
        assert (ended.status, ended.error) == (TaskStatus.CANCELLED, "not needed")

    async def test_an_effect_is_made_once_over_all_attempts(self, store: TaskStore) -> None:
        task = await added(store)
        made: list[Effect] = []

        async def make(effect: Effect) -> JsonValue:
            made.append(effect)
            return {"number": len(made)}

        await claimed(store, NO_LEASE)
        assert await store.once(task.task_id, 1, "charge", make) == {"number": 1}
        await claimed(store)
        assert await store.once(task.task_id, 2, "charge", make) == {"number": 1}
        assert await store.once(task.task_id, 2, "mail", make) == {"number": 2}
        assert [effect.key for effect in made] == [f"{task.task_id}/charge", f"{task.task_id}/mail"]

    async def test_an_effect_that_failed_may_be_made_again(self, store: TaskStore) -> None:
        task = await added(store)
        await claimed(store)

        async def fail(effect: Effect) -> JsonValue:
            raise ConnectionError("service away")

        async def make(effect: Effect) -> JsonValue:
            return "made"

        with pytest.raises(ConnectionError, match="service away"):
            await store.once(task.task_id, 1, "charge", fail)
        assert await store.once(task.task_id, 1, "charge", make) == "made"

    async def test_every_change_is_to_be_announced_once_and_in_order(self, store: TaskStore) -> None:
        task = await added(store)
        claim = await claimed(store)
        for fraction in (0.05, 0.11, 0.15, 0.5, 0.55):
            await store.progress(task.task_id, 1, fraction, f"{fraction:.0%}")
        await succeed(store, claim)
        events = await store.unannounced(AGENT)
        assert [(one.number, one.document["status"], one.document["progress"]) for one in events] == [
            (1, "PENDING", 0.0),
            (2, "RUNNING", 0.0),
            (3, "RUNNING", 0.11),
            (4, "RUNNING", 0.5),
            (5, "SUCCEEDED", 1.0),
        ]
        assert len({one.packet_id for one in events}) == 5
        await store.announced(task.task_id, 1)
        assert [(one.number, one.packet_id) for one in await store.unannounced(AGENT, 1)] == [(2, events[1].packet_id)]
        assert await store.unannounced("other-1") == []

    async def test_old_tasks_are_purged_but_none_that_is_waited_for_or_not_yet_told_of(self, store: TaskStore) -> None:
        needed, done, other = await added(store), await added(store), await added(store, agent_id="other-1")
        waiting = await added(store, needed)
        for agent_id, count in ((AGENT, 2), ("other-1", 1)):
            for _ in range(count):
                await succeed(store, await claimed(store, agent_id=agent_id))
        now = datetime.now(UTC)
        later = now + timedelta(hours=1)
        assert await store.purge(later) == 0  # everything of them is still to be told
        for agent_id in (AGENT, "other-1"):
            for event in await store.unannounced(agent_id):
                await store.announced(event.task_id, event.number)
        assert await store.purge(now - timedelta(hours=1)) == 0
        assert await store.purge(later, AGENT) == 1
        assert {task.task_id for task in await store.list()} == {needed.task_id, waiting.task_id, other.task_id}
        with pytest.raises(TaskUnknown):
            await store.get(done.task_id)
        assert (await claimed(store)).task.task_id == waiting.task_id

    async def test_tasks_are_listed_newest_first_and_by_what_is_asked(self, store: TaskStore) -> None:
        first = await added(store, session_id="s-1")
        second = await added(store, session_id="s-2")
        third = await added(store, agent_id="other-1", session_id="s-2")
        await store.cancel(first.task_id, "no")

        async def listed(**filters: Any) -> list[UUID]:
            return [task.task_id for task in await store.list(**filters)]

        assert await listed() == [third.task_id, second.task_id, first.task_id]
        assert await listed(limit=1) == [third.task_id]
        assert await listed(agent_id=AGENT) == [second.task_id, first.task_id]
        assert await listed(session_id="s-2") == [third.task_id, second.task_id]
        assert await listed(statuses=[TaskStatus.CANCELLED]) == [first.task_id]

    async def test_an_unknown_task_is_said_to_be_so(self, store: TaskStore) -> None:
        for call in (store.get(uuid4()), store.cancel(uuid4(), "no")):
            with pytest.raises(TaskUnknown, match="apc task list"):
                await call

    async def test_who_waits_is_woken_by_a_change(self, store: TaskStore) -> None:
        count = store.news.count
        waiting = asyncio.create_task(store.news.since(count, timedelta(minutes=1)))
        await added(store)
        async with asyncio.timeout(10):
            await waiting
        await store.news.since(store.news.count, timedelta(0))


async def never(effect: Effect) -> JsonValue:
    raise AssertionError("a fenced attempt makes no effect")


class TestMemoryTaskStore(TaskStoreSuite):
    @pytest.fixture
    def store(self) -> TaskStore:
        return InMemoryTaskStore()

"""What becomes of the actions of a response that run now."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import JsonValue
from tests.minds.workshop import Workshop, in_context, internal, response, tool

from apc_agents import EmitUnconfirmed
from apc_contracts import (
    AgentResponse,
    SecurityLevel,
)
from apc_minds.actions import (
    ActionExecutor,
    ActionReport,
    ActionsRefused,
    ObservationStatus,
    ToolCall,
)


async def run(workshop: Workshop, answer: AgentResponse, **settings: Any) -> ActionReport:
    return await ActionExecutor(workshop.tools).run(answer, context=in_context(**settings))


async def refused(workshop: Workshop, answer: AgentResponse, **settings: Any) -> list[tuple[str, str]]:
    with pytest.raises(ActionsRefused) as error:
        await run(workshop, answer, **settings)
    assert workshop.calls == []
    return [(problem.path, problem.message) for problem in error.value.problems]


async def test_actions_run_in_order_and_each_has_an_observation(workshop: Workshop) -> None:
    report = await run(workshop, response(tool("note", params={"value": 1}), tool("add", params={"a": 2})))
    assert workshop.calls == [1, (2, 1)]
    assert [(one.action_id, one.status, one.result) for one in report.observations] == [
        ("action_1", ObservationStatus.SUCCESS, 1),
        ("action_2", ObservationStatus.SUCCESS, 3),
    ]
    assert (report.status, report.stop, report.results) == ("SUCCESS", False, {"action_1": 1, "action_2": 3})


async def test_results_and_variables_reach_what_follows(workshop: Workshop) -> None:
    answer = response(
        tool("note", action_id="sum", params={"value": "${{results.first.n}} and ${{variables.who}}"}),
        tool("note", action_id="first", params={"value": {"n": "${{variables.n}}"}}),
        context={"variables": {"n": 41}},
    )
    report = await run(workshop, answer, variables={"n": 1, "who": "you"})
    assert [one.action_id for one in report.observations] == ["sum", "first"]
    assert report.results == {"first": {"n": 41}, "sum": "41 and you"}


async def test_results_of_earlier_responses_can_be_used(workshop: Workshop) -> None:
    first = await run(workshop, response(tool("note", action_id="old", params={"value": [7]})))
    report = await run(workshop, response(tool("add", params={"a": "${{results.old.0}}"})), results=first.results)
    assert report.results == {"action_1": 8}


async def test_an_id_that_is_used_again_means_the_action_of_this_response(workshop: Workshop) -> None:
    answer = response(tool("note", params={"value": 1}), tool("add", params={"a": "${{results.action_1}}"}))
    report = await run(workshop, answer, results={"action_1": "a text of the last response"})
    assert report.results == {"action_1": 1, "action_2": 2}


async def test_a_failure_cancels_what_needs_it_with_a_reason_and_nothing_else(workshop: Workshop) -> None:
    report = await run(
        workshop,
        response(
            tool("fail", action_id="a", params={"message": "disk full"}, sub_actions=[tool("note", action_id="a1")]),
            tool("note", action_id="b", depends_on=["a"]),
            tool("note", action_id="c", params={"value": "${{results.b}}"}),
            tool("note", action_id="d", params={"value": "ran"}),
        ),
    )
    assert workshop.calls == ["disk full", "ran"]
    assert [(one.action_id, one.status) for one in report.observations] == [
        ("a", ObservationStatus.ERROR),
        ("a1", ObservationStatus.CANCELLED),
        ("b", ObservationStatus.CANCELLED),
        ("c", ObservationStatus.CANCELLED),
        ("d", ObservationStatus.SUCCESS),
    ]
    assert report.observations[0].error == "ValueError: disk full"
    assert report.observations[2].error == "it needs a, which failed: ValueError: disk full"
    assert report.observations[3].error is not None
    assert report.observations[3].error.startswith("it needs b, which was cancelled: it needs a, which failed")
    assert report.status == "ERROR"


async def test_a_path_inside_a_result_that_is_not_there_fails_that_action(workshop: Workshop) -> None:
    answer = response(
        tool("note", action_id="a", params={"value": {"x": 1}}), tool("note", params={"value": "${{results.a.y}}"})
    )
    report = await run(workshop, answer)
    assert workshop.calls == [{"x": 1}]
    assert report.observations[1].error == "${{results.a.y}} points nowhere: results.a has no 'y'; its names are x"


async def test_params_are_judged_again_when_a_result_has_come(workshop: Workshop) -> None:
    answer = response(
        tool("note", action_id="a", params={"value": "text"}), tool("add", params={"a": "${{results.a}}"})
    )
    report = await run(workshop, answer)
    assert report.observations[1].error == "params.a: must be an integer"


@pytest.mark.parametrize(
    ("actions", "path", "words"),
    [
        ([tool("vanish")], "actions[1].action", "there is no tool 'vanish'; those there are: add, fail, note, wipe"),
        ([internal("dance")], "actions[1].action", "there is no internal verb 'dance'"),
        ([{"action": "ls", "type": "script"}], "actions[1].type", "no sandboxed runner"),
        ([tool("add", params={"b": 1})], "actions[1].params.a", "required field is missing"),
        ([tool("add", params={"a": "1"})], "actions[1].params.a", "must be an integer"),
        ([tool("add", params={"a": 1, "c": 1})], "actions[1].params.c", "unknown field"),
        ([tool("add", params={"a": "${{results.first}}", "c": 1})], "actions[1].params.c", "unknown field"),
        ([tool("note", params={"value": "${{variables.x}}"})], "actions[1].params", "no such variable"),
        ([tool("note", params={"value": "${{results.x}}"})], "actions[1].params", "no such action"),
        ([tool("note", depends_on=["x"])], "actions[1].depends_on[0]", "no action of this response"),
        ([tool("note", execution="ASYNC")], "actions[1].execution", "runs no tasks"),
        ([internal("stop", execution="ASYNC")], "actions[1].execution", "use SYNC"),
        ([tool("wipe")], "actions[1].action", "needs the security_level admin, this is user"),
        ([tool("add", sub_actions=[tool("add")], params={"a": 1})], "actions[1].sub_actions[0].params.a", "missing"),
    ],
)
async def test_nothing_runs_when_anything_cannot(
    workshop: Workshop, actions: list[dict[str, Any]], path: str, words: str
) -> None:
    problems = await refused(workshop, response(tool("note", action_id="first"), *actions))
    assert path in [where for where, _ in problems]
    assert words in next(message for where, message in problems if where == path)


async def test_every_problem_is_told_at_once(workshop: Workshop) -> None:
    problems = await refused(workshop, response(tool("vanish"), tool("wipe"), tool("add")))
    assert [path for path, _ in problems] == ["actions[0].action", "actions[1].action", "actions[2].params.a"]


async def test_a_response_may_lower_its_level_and_not_raise_it(workshop: Workshop) -> None:
    admin = response(tool("wipe"), context={"security_level": "admin"})
    assert await refused(workshop, admin) == [
        ("context.security_level", "admin is above user, which this agent was given"),
    ]
    lowered = response(tool("note"), context={"security_level": "public"})
    assert (
        "needs the security_level user" in (await refused(workshop, lowered, security_level=SecurityLevel.ADMIN))[0][1]
    )
    assert (await run(workshop, admin, security_level=SecurityLevel.ADMIN)).status == "SUCCESS"


async def test_a_tool_reads_the_listed_knowledge_only(workshop: Workshop) -> None:
    @workshop.tools.tool(reads=True)
    async def summarize(relic: str, call: ToolCall) -> JsonValue:
        return await call.knowledge.read(relic)

    @workshop.tools.tool()
    async def peek(relic: str, call: ToolCall) -> JsonValue:
        return await call.knowledge.read(relic)

    async def read(knowledge_id: str) -> JsonValue:
        return f"text of {knowledge_id}"

    workshop.tools.read_knowledge = read

    scope = {"knowledge_relics": ["docs"]}
    answer = response(
        tool("summarize", params={"relic": "docs"}),
        tool("summarize", params={"relic": "secrets"}),
        tool("peek", params={"relic": "docs"}),
        context=scope,
    )
    inside, outside, unasked = (await run(workshop, answer)).observations
    assert inside.result == "text of docs"
    assert outside.error == (
        "KnowledgeOutOfScope: knowledge 'secrets' is out of scope: context.knowledge_relics lists docs"
    )
    assert unasked.error is not None
    assert "register it with reads=True" in unasked.error
    workshop.calls.clear()
    problems = await refused(workshop, response(context=scope), allowed_knowledge=["manual"])
    assert problems == [("context.knowledge_relics[0]", "'docs' may not be read; those that may are manual")]


async def test_an_action_over_its_time_limit_is_cancelled(workshop: Workshop) -> None:
    ends: list[str] = []

    @workshop.tools.tool(time_limit=timedelta(milliseconds=10))
    async def sleep() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    @workshop.tools.tool(time_limit=timedelta(milliseconds=10))
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "late"

    first, second = (await run(workshop, response(tool("sleep"), tool("stubborn")))).observations
    assert ends == ["cancelled"]
    assert first.error == second.error == "it was cancelled at its time limit of 0.01 s"


async def test_a_time_out_of_the_tools_own_is_told_as_such(workshop: Workshop) -> None:
    @workshop.tools.tool()
    async def connect() -> None:
        raise TimeoutError("no answer")

    report = await run(workshop, response(tool("connect")))
    assert report.observations[0].error == "TimeoutError: no answer"


async def test_a_cancelled_executor_is_cancelled_and_a_tool_that_cancels_itself_has_failed(workshop: Workshop) -> None:
    started = asyncio.Event()

    @workshop.tools.tool()
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    @workshop.tools.tool()
    async def give_up() -> None:
        raise asyncio.CancelledError

    report = await run(workshop, response(tool("give_up")))
    assert report.observations[0].error == "it was cancelled from within"
    running = asyncio.create_task(run(workshop, response(tool("wait"))))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_what_the_worker_must_see_is_no_observation(workshop: Workshop) -> None:
    @workshop.tools.tool()
    async def publish() -> None:
        raise EmitUnconfirmed("id", "no broker")

    with pytest.raises(EmitUnconfirmed):
        await run(workshop, response(tool("publish")))


async def test_scripts_run_in_the_registered_runner_only(workshop: Workshop) -> None:
    async def sandbox(script: str, params: Any, call: ToolCall) -> JsonValue:
        return f"{script} {params['n']} {call.action_id}"

    script = response({"action": "print(n)", "type": "script", "params": {"n": 1}})
    workshop.tools.run_scripts_with(sandbox)
    assert "needs the security_level admin" in (await refused(workshop, script))[0][1]
    report = await run(workshop, script, security_level=SecurityLevel.ADMIN)
    assert report.results == {"action_1": "print(n) 1 action_1"}


async def test_stop_ends_the_loop_by_the_response_or_by_the_verb(workshop: Workshop) -> None:
    assert (await run(workshop, response(stop=True))).stop
    report = await run(workshop, response(internal("stop", params={"reason": "done"}), tool("note")))
    assert (report.stop, report.results) == (True, {"action_1": "done", "action_2": None})
    failed = response(tool("fail", action_id="a"), internal("stop", depends_on=["a"]))
    assert not (await run(workshop, failed)).stop

"""The order of actions: dependencies first, else the order of the document; cycles and unknown ids are refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.minds.workshop import response, tool

from apc_minds.actions import make_plan


def ids(*actions: Any) -> list[str]:
    plan = make_plan(response(*actions))
    assert not plan.problems
    return [planned.action_id for planned in plan.actions]


@st.composite
def graphs(draw: st.DrawFn) -> list[set[int]]:
    """For each action the actions that it depends on; any, so that there may be cycles."""
    count = draw(st.integers(1, 8))
    numbers = st.integers(0, count - 1)
    return [draw(st.sets(numbers, max_size=2)) for _ in range(count)]


def reachable(graph: list[set[int]], start: int) -> set[int]:
    found: set[int] = set()
    pending = list(graph[start])
    while pending:
        number = pending.pop()
        if number not in found:
            found.add(number)
            pending.extend(graph[number])
    return found


@given(graphs())
def test_each_action_runs_after_what_it_needs_and_a_cycle_is_refused(graph: list[set[int]]) -> None:
    actions = [
        tool("t", action_id=f"a{n}", depends_on=[f"a{m}" for m in sorted(needs)]) for n, needs in enumerate(graph)
    ]
    plan = make_plan(response(*actions))
    if any(number in reachable(graph, number) for number in range(len(graph))):
        assert [problem.message[:7] for problem in plan.problems] == ["a cycle"]
        assert plan.actions == []
        return
    assert not plan.problems
    places = {planned.position: place for place, planned in enumerate(plan.actions)}
    assert sorted(places) == list(range(len(graph)))
    for number, needs in enumerate(graph):
        assert all(places[needed] < places[number] for needed in needs)


@given(graphs())
def test_of_those_that_could_run_the_first_of_the_document_does(graph: list[set[int]]) -> None:
    forward = [{needed for needed in needs if needed < number} for number, needs in enumerate(graph)]
    actions = [tool("t", action_id=f"a{n}", depends_on=[f"a{m}" for m in needs]) for n, needs in enumerate(forward)]
    assert ids(*actions) == [f"a{number}" for number in range(len(graph))]


def test_an_action_without_an_id_is_counted() -> None:
    assert ids(tool("a"), tool("b", sub_actions=[tool("c")]), tool("d")) == [f"action_{n}" for n in (1, 2, 3, 4)]


def test_sub_actions_follow_their_action_and_who_needs_it_waits_for_them() -> None:
    build = tool(
        "b", action_id="build", sub_actions=[tool("t", action_id="test", sub_actions=[tool("l", action_id="lint")])]
    )
    assert ids(tool("s", action_id="ship", depends_on=["build"]), build) == ["build", "test", "lint", "ship"]


def test_a_sub_action_may_name_its_own_action() -> None:
    assert ids(tool("a", action_id="a", sub_actions=[tool("b", action_id="b", depends_on=["a"])])) == ["a", "b"]


def test_a_result_that_is_referred_to_is_waited_for() -> None:
    assert ids(tool("a", action_id="a", params={"x": ["${{results.b.y}}"]}), tool("b", action_id="b")) == ["b", "a"]


def test_a_result_of_an_earlier_response_is_not() -> None:
    plan = make_plan(response(tool("a", params={"x": "${{results.old}}"})), {"old"})
    assert (plan.problems, plan.actions[0].needs) == ([], ())


@pytest.mark.parametrize(
    ("actions", "path", "words"),
    [
        ([tool("t", depends_on=["x"])], "actions[0].depends_on[0]", "no action of this response has the id 'x'"),
        ([tool("t", action_id="a", depends_on=["a"])], "actions[0].depends_on", "a cycle: a needs a"),
        ([tool("t", action_id="a"), tool("t", action_id="a")], "actions[1].action_id", "'a' is taken"),
        ([tool("t", action_id="action_2"), tool("t")], "actions[0].action_id", "'action_2' is taken"),
        ([tool("t", params={"x": "${{results.no.a}}"})], "actions[0].params", "no such action"),
        ([tool("t", params={"x": "${{results}}"})], "actions[0].params", "write"),
        (
            [tool("t", action_id="a", execution="ASYNC"), tool("t", depends_on=["a"])],
            "actions[1].execution",
            "make it ASYNC",
        ),
        (
            [tool("t", action_id="a", sub_actions=[tool("u", action_id="b")], depends_on=["b"])],
            "actions[0].depends_on",
            "a cycle",
        ),
        (
            [tool("t", action_id="a", params={"x": "${{results.b}}"}), tool("t", action_id="b", depends_on=["a"])],
            "actions[0].depends_on",
            "a cycle: a needs b needs a",
        ),
    ],
)
def test_what_cannot_be_ordered_is_refused_with_its_place(actions: list[Any], path: str, words: str) -> None:
    plan = make_plan(response(*actions))
    assert [problem.path for problem in plan.problems] == [path]
    assert words in plan.problems[0].message

"""What the results, parameters and variables of actions may hold, and how they are written as JSON."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.minds.actions.test_executor import refused, run
from tests.minds.workshop import Workshop, response, tool

from apc_agents.json_values import json_form
from apc_contracts import (
    AgentResponse,
    SecurityLevel,
)
from apc_minds.actions import (
    ActionError,
    ObservationStatus,
    StateMemory,
)
from apc_minds.memory import ValueInvalid


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (object(), "result: object is not JSON"),
        ({"a": [1, b"x"]}, "result.a[1]: bytes is not JSON"),
        ({1: 2}, "result: the key 1 is no text"),
        ({"a": math.nan}, "result.a: nan is no JSON number"),
        ("a\0b", "result: U+0000 cannot be stored"),
        ("\ud800", "result: half a surrogate pair"),
        ({"a": {1, 2}}, "result.a: set is not JSON"),
        (2**70, "result: an integer of more than 64 bits"),
        ("a" * 300_000, "result: has 300002 bytes, 262144 are allowed"),
    ],
)
async def test_a_result_that_json_does_not_know_is_an_error_with_its_place(
    workshop: Workshop, value: Any, error: str
) -> None:
    @workshop.tools.tool()
    async def give() -> Any:
        return value

    (observation,) = (await run(workshop, response(tool("give")))).observations
    assert observation.status is ObservationStatus.ERROR
    assert observation.error is not None
    assert observation.error.startswith(error)


def test_what_has_a_json_form_is_written_so() -> None:
    looped: list[Any] = []
    looped.append(looped)
    assert json_form({"at": datetime(2026, 1, 1, tzinfo=UTC), "who": ("a", SecurityLevel.USER)}, "v") == {
        "at": "2026-01-01T00:00:00Z",
        "who": ["a", "user"],
    }
    with pytest.raises(Exception, match="more than 100 levels"):
        json_form(looped, "v")


async def test_what_is_remembered_has_a_bound_and_is_json() -> None:
    class Kept:
        def __init__(self) -> None:
            self.state: dict[str, Any] = {}

    kept = Kept()
    memory = StateMemory(kept)
    await memory.remember("a", "x" * 10_000)
    with pytest.raises(ActionError, match="20015 bytes would be remembered, 16384 are allowed: forget some first"):
        await memory.remember("b", "x" * 10_000)
    with pytest.raises(ValueInvalid, match="U\\+0000"):
        await memory.remember("b", "\0")
    assert list(kept.state["remembered"]) == ["a"]
    assert await memory.forget("a") and not await memory.forget("a")
    await memory.remember("b", "x" * 10_000)


@pytest.mark.parametrize("value", [2**70, {"deep": [2**64]}, "\ud800"])
async def test_params_that_json_cannot_carry_are_refused(workshop: Workshop, value: Any) -> None:
    action = {"action": "note", "type": "tool", "params": {"value": value}}
    answer = AgentResponse.model_validate({"status": "EXECUTING", "stop": False, "actions": [action]})
    ((path, message),) = await refused(workshop, answer)
    assert path == "actions[0].params" and "cannot be written as JSON" in message


async def test_a_variable_that_json_does_not_know_is_refused(workshop: Workshop) -> None:
    problems = await refused(workshop, response(tool("note")), variables={"x": [object()]})
    assert problems[0][0] == "context.variables.x[0]"

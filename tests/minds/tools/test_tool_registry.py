"""Tools are typed functions with a JSON Schema; what cannot be one is refused when it is registered."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from apc_contracts import SecurityLevel
from apc_minds.actions import ToolCall, ToolInvalid, ToolRegistry


class Target(BaseModel):
    """What is to be built."""

    label: str = Field(pattern="^//")
    jobs: int = 1


async def build(target: Target, at: datetime, call: ToolCall, mode: Literal["debug", "release"] = "debug") -> str:
    """Builds a target."""
    return f"{target.label} {mode} {at.year} {call.agent_id}"


async def open_ended(*targets: str) -> None: ...


async def untyped(target) -> None:  # type: ignore[no-untyped-def]
    ...


async def unknown_type(target: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
    ...


async def no_json(target: Callable[[], int]) -> None: ...


async def hidden(_target: str) -> None: ...


def blocking(target: str) -> None: ...


def registered() -> Any:
    tools = ToolRegistry()
    tools.tool(security_level="trusted")(build)
    return tools.tools["build"]


def test_the_schema_follows_from_the_signature() -> None:
    schema = registered().parameters
    assert schema["required"] == ["target", "at"]
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == ["target", "at", "mode"]
    assert schema["properties"]["mode"]["enum"] == ["debug", "release"]
    assert schema["$defs"]["Target"]["properties"]["label"]["pattern"] == "^//"


@pytest.mark.parametrize(
    ("params", "path", "words"),
    [
        ({}, "params.target", "missing"),
        ({"target": {"label": "main"}, "at": "2026-01-01T00:00:00Z"}, "params.target.label", "^//"),
        ({"target": {"label": "//a", "jobs": "2"}, "at": "2026-01-01T00:00:00Z"}, "params.target.jobs", "integer"),
        ({"target": {"label": "//a"}, "at": "yesterday"}, "params.at", "datetime"),
        ({"target": {"label": "//a"}, "at": "2026-01-01T00:00:00Z", "mode": "fast"}, "params.mode", "'debug'"),
        ({"target": {"label": "//a"}, "at": "2026-01-01T00:00:00Z", "call": 1}, "params.call", "unknown field"),
    ],
)
def test_params_that_fail_the_schema_are_named(params: dict[str, Any], path: str, words: str) -> None:
    problem, *others = registered().problems_of(params, "params")
    assert (problem.path, others) == (path, [])
    assert words in problem.message


async def test_a_tool_gets_typed_arguments_and_its_call() -> None:
    call = ToolCall("a", "builder-1", "s", SecurityLevel.USER, UUID(int=1))
    params = {"target": {"label": "//a"}, "at": "2026-01-01T00:00:00Z"}
    assert await registered().bound(params, {ToolCall: call}) == "//a debug 2026 builder-1"


def test_a_model_is_told_of_the_tools_that_its_level_may_run() -> None:
    tools = ToolRegistry()
    tools.tool(security_level="trusted")(build)
    assert tools.described(SecurityLevel.USER) == []
    (told,) = tools.described(SecurityLevel.TRUSTED)
    assert (told["name"], told["description"]) == ("build", "Builds a target.")
    assert told["parameters"]["type"] == "object"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (blocking, "write `async def`"),
        (open_ended, "need their own name"),
        (untyped, "'target' has no type"),
        (unknown_type, "Nowhere"),
        (no_json, "JSON cannot carry"),
        (hidden, "need their own name"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(function: Callable[..., Awaitable[Any]], words: str) -> None:
    with pytest.raises(ToolInvalid, match=words):
        ToolRegistry().tool()(function)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"security_level": "root"}, "use one of public, user, trusted, admin"),
        ({"time_limit": timedelta(0)}, "make it longer"),
    ],
)
def test_settings_of_a_tool_are_checked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolInvalid, match=words):
        ToolRegistry().tool(**settings)(build)


def test_two_tools_of_one_name_are_refused() -> None:
    tools = ToolRegistry()
    tools.tool()(build)
    with pytest.raises(ToolInvalid, match="two tools 'build'"):
        tools.tool()(build)

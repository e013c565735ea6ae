"""Calls a tool: within its time limit, and with a result that is JSON."""

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from apc_agents.errors import EmitUnconfirmed, StateError
from apc_agents.tools.errors import TaskLost, ToolFailed, ValueUnserialisable
from apc_agents.tools.result_values import result_value
from apc_agents.tools.tool_registry import Runnable
from apc_bus.concurrency import is_cancelled

MAX_ERROR_LENGTH = 1_000
_NOT_THE_TOOLS_FAULT = (EmitUnconfirmed, StateError, TaskLost)
"""What the worker itself must see: it runs the handler or the task again, or drops it."""


async def invoke(runnable: Runnable, params: Mapping[str, Any], given: Mapping[type, Any]) -> JsonValue:
    """Return what the tool returns, as JSON. `params` are checked; `given` is what is injected, by type.

    Raises:
        ToolFailed: it raised, was cancelled at its time limit, or its result is no JSON or too large.
        EmitUnconfirmed, StateError, TaskLost: as the tool raised them.
    """
    over_time = f"it was cancelled at its time limit of {runnable.time_limit.total_seconds():g} s"
    try:
        async with asyncio.timeout(runnable.time_limit.total_seconds()) as limit:
            value = await runnable.bound(params, given)
    except _NOT_THE_TOOLS_FAULT:
        raise
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise ToolFailed("it was cancelled from within") from error
    except (SystemExit, GeneratorExit) as error:
        raise ToolFailed(f"it raised {error!r}") from error
    except Exception as error:
        if limit.expired():
            raise ToolFailed(over_time) from error
        raise ToolFailed(storable(f"{type(error).__name__}: {error}")) from error
    if limit.expired():
        raise ToolFailed(over_time)
    return _checked(value)


def storable(text: str) -> str:
    """Return the beginning of a text, without what the database cannot store."""
    return text[:MAX_ERROR_LENGTH].replace("\0", "\ufffd").encode(errors="replace").decode()


def _checked(value: Any) -> JsonValue:
    try:
        return result_value(value)
    except ValueUnserialisable as error:
        raise ToolFailed(str(error)) from error

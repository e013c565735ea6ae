"""Marks what tools of a pydantic-ai agent give as data: it may hold text of unknown authors."""

from dataclasses import replace
from typing import Any

import orjson
from pydantic_ai import RunContext, ToolReturn
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelRetry, ToolRetryError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_jsonable_python

from apc_agents.llm.fencing import TOOL_SOURCE, fenced


class Marked(AbstractCapability[Any]):
    """Encloses results and errors of tools in the marks of one run."""

    def __init__(self, fence: str) -> None:
        self._fence = fence

    def enclosed(self, text: str, tool: str) -> str:
        """Return the text as data of this tool."""
        return fenced(text, self._fence, {**TOOL_SOURCE, "tool": tool})

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        """Make the call; what it gives is text."""
        try:
            given = await handler(args)
        except ModelRetry as retry:
            raise ModelRetry(self.enclosed(retry.message, call.tool_name)) from retry
        except ToolRetryError as retry:
            said = retry.tool_retry
            if isinstance(said.content, str):
                said = replace(said, content=self.enclosed(said.content, call.tool_name))
            raise ToolRetryError(said) from retry
        return self.enclosed(_written(given.return_value if isinstance(given, ToolReturn) else given), call.tool_name)


def _written(given: Any) -> str:
    plain = to_jsonable_python(given, fallback=str)
    return plain if isinstance(plain, str) else orjson.dumps(plain).decode()

"""An agent to chat with, whose one tool counts in the database and then waits for a file; run by test_chat_tasks."""

import os
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.support.waiting import until

from apc_minds.actions import Effect, ToolCall, ToolRegistry
from apc_minds.llm import LLMAgent

GO_ON = "GO_ON"
"""Environment: the file that lets the task end."""
tools = ToolRegistry()


def may_go_on() -> bool:
    """Return whether the test lets the task end."""
    return Path(os.environ[GO_ON]).exists()


@tools.tool()
async def count_up(call: ToolCall) -> str:
    """Adds a row, once."""

    async def add(effect: Effect) -> JsonValue:
        await effect.connection.execute("INSERT INTO counted (key) VALUES ($1)", effect.key)
        return "counted"

    done = await call.once("count", add)
    await call.progress(0.5, "counted")
    await until(may_go_on, None)
    return str(done)


def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Starts the task; says how it stands when it is asked."""
    told = str(messages[-1].parts[-1].content)
    has_ended = '"SUCCEEDED"' in str(messages[0])
    document: dict[str, Any] = {"status": "SUCCESS", "stop": True}
    if told == "start":
        start = {"action": "count_up", "type": "tool", "execution": "ASYNC"}
        document |= {"actions": [start], "response": "Started."}
    else:
        document |= {"response": "It has ended." if has_ended else "It goes on."}
    return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, document)])


agent = LLMAgent("slow-1", role="clerk", swarm="chat", model=FunctionModel(think, model_name="slow"), tools=tools)

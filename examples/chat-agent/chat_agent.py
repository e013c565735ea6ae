"""A shipping clerk to talk to. It needs no key: its model is a function, unless APC_LLM_MODEL names a real one.

cd examples/chat-agent && apc chat --agent chat_agent:agent
"""

import os
import re
from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from apc_minds.actions import ToolCall, ToolRegistry
from apc_minds.context import SessionConfig
from apc_minds.llm import LLMAgent, Persona

RATES = {"rome": 12.5, "oslo": 19.0, "porto": 9.75}
"""Euro for a kilogram."""

tools = ToolRegistry()


@tools.tool()
async def quote(city: str, kilograms: float) -> dict[str, Any]:
    """Return what it costs to send a parcel to a city, in euro."""
    if city.lower() not in RATES:
        raise ValueError(f"we do not deliver to {city}: we deliver to {', '.join(RATES)}")
    return {"city": city, "euro": round(RATES[city.lower()] * kilograms, 2)}


@tools.tool()
async def plan_route(city: str, call: ToolCall) -> dict[str, Any]:
    """Plans the route to a city leg by leg; takes long, so start it with execution ASYNC."""
    legs = ["harbour", "pass", city]
    for number, leg in enumerate(legs, start=1):
        await call.progress(number / len(legs), f"planned {leg}")
    return {"legs": legs}


def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Return what a model would answer: these rules are its whole mind."""
    told = _told(messages)
    if '"from":"tools"' in told:  # observations: what came of the actions
        return _answer(info, response=_report(told))
    if found := re.search(r"(\d+(?:\.\d+)?) ?kg to (\w+)", told):
        params = {"city": found[2], "kilograms": float(found[1])}
        return _answer(info, actions=[{"action": "quote", "type": "tool", "params": params}], stop=False)
    if found := re.search(r"route to (\w+)", told):
        plan = {"action": "plan_route", "type": "tool", "params": {"city": found[1]}, "execution": "ASYNC"}
        return _answer(info, actions=[plan], stop=False)
    if found := re.search(r"my name is (\w+)", told, re.IGNORECASE):
        keep = {"action": "remember", "type": "internal", "params": {"key": "name", "value": found[1]}}
        return _answer(info, actions=[keep], response=f"Nice to meet you, {found[1]}.")
    if "my name" in told:
        name = re.search(r'"from":"memory".*"name":"(\w+)"', str(messages[0]))
        return _answer(info, response=f"You are {name[1]}." if name else "You have not told me.")
    return _answer(info, response="Ask me for a price (3 kg to Rome) or for the route to a city.")


def _told(messages: Sequence[ModelMessage]) -> str:
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    newest = next((part for part in reversed(parts) if isinstance(part, UserPromptPart)), None)
    return "" if newest is None else str(newest.content)


def _report(observations: str) -> str:
    if found := re.search(r'"euro":([\d.]+)', observations):
        return f"That is {found[1]} euro."
    if found := re.search(r'"task_id":"([\w-]+)"', observations):
        return f"I am planning it as task {found[1]}; /tasks shows how far it is."
    why = re.search(r'"error":"([^"]*)"', observations)
    return f"That did not work: {why[1] if why else observations}"


def _answer(
    info: AgentInfo, *, response: str | None = None, stop: bool = True, actions: Sequence[Any] = ()
) -> ModelResponse:
    document = {"status": "SUCCESS", "thoughts": [], "actions": list(actions), "stop": stop, "response": response}
    return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, document)])


agent = LLMAgent(
    "clerk-1",
    role="clerk",
    swarm="shipping",
    model=os.environ.get("APC_LLM_MODEL") or FunctionModel(think, model_name="clerk"),
    tools=tools,
    persona=Persona("assistant", {"warmth": 0.6}, ["Prices are in euro.", "Use the tools for prices and routes."]),
    config=SessionConfig(max_tokens=2_000),
)

"""Fake models of frameworks: each calls the tool twice with the same arguments, and then says what the tool gave."""

TOOL = """
from typing import Any

from apc_agents import AgentTestClient, content_of, once

paid: list[str] = []


@once
async def pay(order: str) -> str:
    \"\"\"Pay an order.\"\"\"
    paid.append(order)
    return f"receipt of {order}"


@once
def pay_in_thread(order: str) -> str:
    \"\"\"Pay an order.\"\"\"
    paid.append(order)
    return f"receipt of {order}"
"""

RUN = """
async def main() -> None:
    async with AgentTestClient(desk) as client:
        reply = await client.send(Question(text="O-7"))
        print("said:", content_of(reply, Answer).text, paid)


asyncio.run(main())
"""

SMOLAGENTS = """
from smolagents import Tool, ToolCallingAgent
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole, Model


class Pay(Tool):
    name = "pay"
    description = "Pay an order."
    inputs = {"order": {"type": "string", "description": "The order."}}
    output_type = "string"

    def forward(self, order: str) -> str:
        return pay_in_thread(order)


class Fake(Model):
    asked = 0

    def generate(self, messages: Any, **options: Any) -> ChatMessage:
        Fake.asked += 1
        end = ("final_answer", {"answer": "receipt of O-7"})
        name, arguments = ("pay", {"order": "O-7"}) if Fake.asked < 3 else end
        call = ChatMessageToolCallFunction(name=name, arguments=arguments)
        calls = [ChatMessageToolCall(id=str(Fake.asked), type="function", function=call)]
        return ChatMessage(role=MessageRole.ASSISTANT, content="", tool_calls=calls)


small = ToolCallingAgent(tools=[Pay()], model=Fake(model_id="fake"), verbosity_level=0)
"""

STRANDS = """
from strands import Agent as Strand
from strands import tool
from strands.models import Model


class Fake(Model):
    asked = 0

    def update_config(self, **options: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    async def structured_output(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **options: Any) -> Any:
        Fake.asked += 1
        yield {"messageStart": {"role": "assistant"}}
        if Fake.asked < 3:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": "refund", "toolUseId": str(Fake.asked)}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"order": "O-7"}'}}}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "receipt of O-7"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if Fake.asked < 3 else "end_turn"}}
        usage = {"inputTokens": 3, "outputTokens": 1, "totalTokens": 4}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


@tool
async def refund(order: str) -> str:
    \"\"\"Refund an order.

    Args:
        order: The order.
    \"\"\"
    return await pay(order)


strand = Strand(model=Fake(), tools=[refund], callback_handler=None)
"""

ADK = """
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types


class Fake(BaseLlm):
    async def generate_content_async(self, request: Any, stream: bool = False) -> Any:
        calls = sum(bool(part.function_response) for one in request.contents for part in one.parts or [])
        called = types.Part(function_call=types.FunctionCall(name="refund", args={"order": "O-7"}))
        part = called if calls < 2 else types.Part(text="receipt of O-7")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def refund(order: str) -> str:
    \"\"\"Refund an order.\"\"\"
    return await pay(order)


runner = InMemoryRunner(agent=LlmAgent(name="desk", model=Fake(model="fake"), tools=[refund]), app_name="desk")
"""

FRAMEWORK = """
from agent_framework import Agent as FrameworkAgent
from agent_framework import BaseChatClient, ChatResponse, Content, FunctionInvocationLayer, Message, tool


class Fake(FunctionInvocationLayer, BaseChatClient):
    asked = 0

    def _inner_get_response(self, *, messages: Any, stream: bool = False, options: Any = None, **named: Any) -> Any:
        async def one() -> ChatResponse:
            Fake.asked += 1
            call = Content.from_function_call(str(Fake.asked), "refund", arguments={"order": "O-7"})
            return ChatResponse(messages=[Message("assistant", [call if Fake.asked < 3 else "receipt of O-7"])])

        return one()


@tool(approval_mode="never_require")
async def refund(order: str) -> str:
    \"\"\"Refund an order.\"\"\"
    return await pay(order)


framework = FrameworkAgent(client=Fake(), name="desk", tools=[refund])
"""

CREWAI = """
from crewai import Agent as CrewAgent
from crewai import BaseLLM, Crew, Task
from crewai.tools import BaseTool


class Pay(BaseTool):
    name: str = "pay"
    description: str = "Pay an order."

    def _run(self, order: str) -> str:
        return pay_in_thread(order)


class Fake(BaseLLM):
    asked: int = 0

    def call(self, messages: Any, *args: Any, **options: Any) -> str:
        Fake.count += 1
        if Fake.count < 3:
            return 'Thought: I pay.\\nAction: pay\\nAction Input: {"order": "O-7"}'
        return "Thought: I know.\\nFinal Answer: receipt of O-7"


Fake.count = 0
payer = CrewAgent(role="payer", goal="pay", backstory="b", llm=Fake(model="fake"), tools=[Pay()], cache=False)
crew = Crew(agents=[payer], tasks=[Task(description="pay {question}", expected_output="a receipt", agent=payer)])
"""

FAKES = {
    "agent-framework-core==1.23.0": ("framework.run", FRAMEWORK),
    "crewai==1.15.30": ("crew.kickoff_async", CREWAI),
    "google-adk==2.13.0": ("runner.run_async", ADK),
    "smolagents==1.26.0": ("small.run", SMOLAGENTS),
    "strands-agents==1.62.0": ("strand.invoke_async", STRANDS),
}
"""Requirement -> what its block of the page has, and the setup of the framework."""

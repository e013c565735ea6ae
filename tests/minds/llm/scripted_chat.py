"""The scripted chat of 200 turns: 100 messages of about 40 tokens, as many answers, under a window of 2,000 tokens.

As a process (`python scripted_chat.py DATABASE_URL`) it goes on with the script where the database says that it
stopped, and tells each step in a line: `asked TOKENS` when the model is asked, `said NUMBER` when an answer is kept.
"""

import asyncio
import sys
from collections.abc import Callable

import asyncpg
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from apc_minds.context import EstimatedTokens, SessionConfig
from apc_minds.llm import Dialogue, LLMAgent, LLMSettings
from apc_minds.memory import BaseMemoryStore, PostgresMemoryStore

MESSAGES = 100
MAX_TOKENS = 2_000
SESSION = "s-1"
OWNER = "alice"


def message_of(number: int) -> str:
    """About 40 tokens."""
    return f"Message {number:03}: " + "the ships leave at dawn and carry grain to the north " * 3


def scripted_agent(on_asked: Callable[[int], None]) -> LLMAgent:
    """Answers about 40 tokens to the message that came last; `on_asked` is told how many tokens the window held."""

    def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        told = [_text(part) for message in messages for part in message.parts]
        on_asked(sum(EstimatedTokens().count(text) for text in told))
        assert isinstance(messages[-1], ModelRequest)
        answer = f"Answer to {told[-1][:11]}: " + "they come back with salt and tin in the autumn " * 3
        document = {"status": "SUCCESS", "thoughts": [], "actions": [], "stop": True, "response": answer}
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, document)])

    return LLMAgent(
        "helper-1",
        role="helper",
        swarm="chat",
        model=FunctionModel(think, model_name="scripted"),
        config=SessionConfig(max_tokens=MAX_TOKENS),
        settings=LLMSettings(),
    )


def dialogue(memory: BaseMemoryStore, on_asked: Callable[[int], None]) -> Dialogue:
    """Return the chat, begun or not."""
    return Dialogue(scripted_agent(on_asked), SESSION, memory)


def _text(part: object) -> str:
    assert isinstance(part, UserPromptPart | SystemPromptPart | TextPart), part
    return str(part.content)


async def main(database_url: str) -> None:
    """Go on with the script to its end."""
    async with asyncpg.create_pool(database_url, min_size=1, max_size=2) as pool:
        talk = dialogue(PostgresMemoryStore(pool, OWNER), lambda tokens: print("asked", tokens, flush=True))
        number = (await talk.begin()).revision - 1  # begun with revision 1; each answer makes the next one
        while number < MESSAGES:
            await talk.say(message_of(number))
            print("said", number, flush=True)
            number += 1


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

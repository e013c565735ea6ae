"""A system in one process with a packet that kills it: run as a process by test_deadly_packets, again and again."""

import asyncio
import json
import os
import signal

from pydantic import BaseModel

import apc_client
from apc_agents import Agent, HandlerContext, Team, message
from apc_client import SessionHalted

POISON = "poison"
LETTERS = {"a": "scribe", POISON: "clerk", "b": "clerk"}
"""By their text, to which agent they go."""


@message("letter/1")
class Letter(BaseModel):
    text: str


@message("reply/1")
class Reply(BaseModel):
    to: str


def team_of(name: str) -> Team:
    """Return a team of one agent, which needs longer for its letters than the poison lets it live."""
    agent = Agent(name, role="clerk", swarm="desk", concurrency=4)

    @agent.on(Letter)
    async def reply(letter: Letter, ctx: HandlerContext) -> None:
        if letter.text == POISON:
            await asyncio.sleep(1.5)  # by then the log has it
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(5)
        await ctx.complete(Reply(to=letter.text))

    return Team(name, agents=[agent], entry=name)


async def main() -> None:
    """Start a session for each letter, or find it under its key; print what became of them."""
    teams = {name: team_of(name) for name in ("clerk", "scribe")}
    ends: dict[str, str] = {}
    async with apc_client.connect() as bus:
        sessions = {text: await bus.start(teams[agent], Letter(text=text), key=text) for text, agent in LETTERS.items()}
        for text, session in sessions.items():
            try:
                ends[text] = Reply.model_validate(await session.result(timeout=60), from_attributes=True).to
            except SessionHalted as error:
                ends[text] = str(error)
    print(json.dumps(ends))


if __name__ == "__main__":
    asyncio.run(main())

"""Starts a session of a team under a key, in a process that a test may kill; prints the session's id."""

import asyncio
import sys

from pydantic import BaseModel

from apc_agents import Agent, HandlerContext, Team, message
from apc_client import connect


@message("chore/1")
class Chore(BaseModel):
    text: str


def team() -> Team:
    agent = Agent("red-1", role="role", swarm="red")

    @agent.on(Chore)
    async def take(chore: Chore, ctx: HandlerContext) -> None: ...

    return Team("chores", agents=[agent], entry="red-1")


async def main(size: int) -> None:
    async with connect(operator="librarian") as client:
        print((await client.start(team(), Chore(text="x" * size), key="chore-1")).session_id)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))

"""A team whose reader stands still the first time that it reads, until it is killed."""

import asyncio
from pathlib import Path

from pydantic import BaseModel

from apc_agents import Agent, HandlerContext, Team, message

BEGUN = Path("begun")
"""In the working folder: the reader has begun to read before."""


@message("page/1")
class Page(BaseModel):
    text: str


@message("summary/1")
class Summary(BaseModel):
    words: int


lead = Agent("lead", role="lead", swarm="desk")
reader = Agent("reader", role="reader", swarm="desk")


@lead.on(Page)
async def ask(page: Page, ctx: HandlerContext) -> None:
    await ctx.emit(page, to="reader")


@reader.on(Page)
async def read(page: Page, ctx: HandlerContext) -> Summary:
    if not page.text:
        raise ValueError("an empty page")
    if not BEGUN.exists():  # noqa: ASYNC240
        BEGUN.touch()  # noqa: ASYNC240
        await asyncio.Event().wait()
    return Summary(words=len(page.text.split()))


@lead.on(Summary)
async def finish(summary: Summary, ctx: HandlerContext) -> None:
    await ctx.complete(summary)


team = Team("desk", agents=[lead, reader], entry="lead", input=Page)

"""A team that reviews pull requests: two readers look at the diff, each for its own faults, and a lead decides."""

from typing import Literal

from pydantic import BaseModel

from apc_agents import Agent, HandlerContext, Team, message


@message("pull-request/1")
class PullRequest(BaseModel):
    number: int
    diff: str


@message("opinion/1")
class Opinion(BaseModel):
    reader: str
    severity: Literal["none", "low", "high"]
    text: str


@message("review/1")
class Review(BaseModel):
    number: int
    merge: bool
    opinions: list[Opinion]


lead = Agent("lead", role="lead", swarm="review")
security = Agent("security", role="reader", swarm="review")
style = Agent("style", role="reader", swarm="review")


@lead.on(PullRequest)
async def ask(request: PullRequest, ctx: HandlerContext) -> None:
    ctx.state.update(number=request.number, opinions={})
    await ctx.emit(request, to=["security", "style"])


@security.on(PullRequest)
async def look_for_secrets(request: PullRequest, ctx: HandlerContext) -> Opinion:
    found = "password" in request.diff
    return Opinion(reader="security", severity="high" if found else "none", text="a password" if found else "nothing")


@style.on(PullRequest)
async def look_at_lines(request: PullRequest, ctx: HandlerContext) -> Opinion:
    longest = max(map(len, request.diff.splitlines()), default=0)
    return Opinion(reader="style", severity="low" if longest > 120 else "none", text=f"longest line: {longest}")


@lead.on(Opinion)
async def decide(opinion: Opinion, ctx: HandlerContext) -> None:
    found = ctx.state["opinions"]
    found[str(ctx.packet.packet_id)] = opinion.model_dump()
    if len(found) == 2:
        ctx.cite(*found)
        opinions = [*map(Opinion.model_validate, found.values())]
        merge = all(one.severity != "high" for one in opinions)
        await ctx.complete(Review(number=ctx.state["number"], merge=merge, opinions=opinions))


team = Team("review", agents=[lead, security, style], entry="lead", input=PullRequest, contract="review.yml")

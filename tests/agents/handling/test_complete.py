"""ctx.complete at the end of a handler."""

from pydantic import BaseModel

from apc_agents import Agent, AgentTestClient, HandlerContext, message
from apc_contracts.payloads.by_type import DecisionPayload


@message("order/1")
class Order(BaseModel):
    item: str


@message("bill/1")
class Bill(BaseModel):
    euros: int


async def test_a_handler_may_return_what_completes_its_task() -> None:
    desk = Agent("desk", role="desk", swarm="shop")

    @desk.on(Order)
    async def bill(order: Order, ctx: HandlerContext) -> None:
        return await ctx.complete(Bill(euros=7))

    async with AgentTestClient(desk) as client:
        done = await client.send(Order(item="lamp"))
        await client.settled()
    assert done is not None and done.payload_as(DecisionPayload).result is not None
    assert client.emitted == [done]

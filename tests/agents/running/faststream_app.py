"""A FastStream application with an agent, as `faststream run` starts it: `python -m faststream run …:app`."""

import os
from typing import Annotated

from faststream import Context, Depends, FastStream
from faststream.rabbit import RabbitBroker

from apc_agents import Agent, HandlerContext
from apc_agents.faststream import run_agents
from apc_contracts import IdeaPayload, Packet, PacketType

agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")


async def renamed(idea: Packet[IdeaPayload], prefix: str = Context(default="alone")) -> str:
    return f"{prefix}-{idea.payload.method_id}"


@agent.on(PacketType.IDEA)
async def review(idea: Packet[IdeaPayload], ctx: HandlerContext, name: Annotated[str, Depends(renamed)]) -> IdeaPayload:
    return idea.payload.model_copy(update={"method_id": name})


app = FastStream(RabbitBroker(os.environ["BROKER_OF_THE_APPLICATION"]), lifespan=run_agents(agent))
app.context.set_global("prefix", "within")

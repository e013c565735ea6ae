"""How many files of the product one packet enters, on the three walks that a reader of the code takes.

`make house` prints the figures. A file that only comes back into a walk when a subject was cut in two is found here.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.integration.conftest import House
from tests.support.house import Walk
from tests.support.traffic import make_idea, make_packet, until

from apc_agents import Agent, AgentTestClient, HandlerContext
from apc_contracts import ClaimPayload, IdeaPayload, Packet, PacketType, ProofBundle

MOST_FILES = {"from AMQP to Postgres": 87, "ctx.emit": 29, "apc packet trace": 19}
"""The bounds: what was measured; for the first, two files more for branches that a run may or may not take."""
MOST_HOPS = 7
"""Calls from the handler to the broker: each is one more function to open for who follows an emission."""
BROKER = "bus/apc_bus/in_memory.py::publish"


def check(name: str, walk: Walk) -> None:
    print(f"walk: {name:22}{len(walk.files)} files")
    for file in sorted(walk.files):
        print(f"   {file}")
    assert 1 < len(walk.files) <= MOST_FILES[name], sorted(walk.files)


async def test_from_amqp_to_postgres(running: House) -> None:
    """The shortest of seven walks counts: what the services do beside it, by their clocks, falls into some of them."""
    walks: list[Walk] = []
    for n in range(8):
        packet = make_packet("red-1", make_idea(f"m-{n}"), ("sentinel",), parent=running.opening)
        with Walk() as walk:
            await running.agents.publish(packet)
            await until(running.is_logged(packet.packet_id))
        walks.append(walk)
    check("from AMQP to Postgres", min(walks[1:], key=lambda walk: len(walk.files)))


async def test_an_emission() -> None:
    walks: list[Walk] = []
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        with Walk(BROKER) as walk:
            await ctx.emit(
                ClaimPayload(claim_id="c", hypothesis_id="h", text="seen", confidence_pre=0.5, confidence_post=0.6),
                proof_bundle=ProofBundle(evidence_refs=("log://1",)),
            )
        walks.append(walk)

    async with AgentTestClient(agent) as client:
        for _ in range(2):
            await client.send(make_idea())
    check("ctx.emit", walks[-1])
    hops = walks[-1].hops
    print(f"walk: {'ctx.emit to the broker':22}{len(hops)} hops")
    assert 1 < len(hops) <= MOST_HOPS, hops


async def test_a_trace(running: House, postgres_url: str) -> None:
    sent = make_packet("red-1", make_idea(), ("sentinel",), parent=running.opening)
    await running.agents.publish(sent)
    await until(running.is_logged(sent.packet_id))
    # In a process for itself: the command configures the logs of its process.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.walking_trace", "--packet-id", str(sent.packet_id)),
        cwd=Path(__file__).parents[2],
        env=os.environ | {"APC_DATABASE_URL": postgres_url},
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    walk = Walk()
    walk.files |= set(json.loads(printed.splitlines()[-1]))
    check("apc packet trace", walk)

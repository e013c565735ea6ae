"""An LLM agent as `apc worker` runs it, over RabbitMQ and Postgres, with a service that speaks OpenAI's API."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.integration.agents.thinking_agent import CONFIG
from tests.integration.agents.worker_process import WorkerProcess
from tests.integration.conftest import House
from tests.minds.llm.model_service import COMPLETION_TOKENS, PROMPT_TOKENS, model_service, written
from tests.support.traffic import make_idea, make_packet, until
from tests.support.traffic.packets import SESSION

from apc_log.queries import get_session
from apc_minds.context import ContextSession, MemoryContextStore
from apc_minds.context.store import StateContextStore
from apc_minds.llm.agent import COMPARTMENTS, Compartment
from apc_minds.memory import PostgresMemoryStore

IDEAS = 6
ANSWERS = 2 * IDEAS + 2
"""Two to each idea; two of prose."""
TOKENS = PROMPT_TOKENS + COMPLETION_TOKENS
INPUT_PRICE, OUTPUT_PRICE = 2, 8
REMEMBER = {"action": "remember", "type": "internal", "params": {"key": "colour", "value": "red"}}
STATE = """
SELECT state_value -> 'state' FROM apc_app.agent_state_store
WHERE agent_id = 'red-1' AND owner_id = $1 AND state_key = 'ctx.state'
"""
TOLD = """
SELECT packets.packet_type, bodies.packet #>> '{payload,error_code}' AS code
FROM apc_log.agent_packets packets JOIN apc_log.packets bodies USING (shard, seq)
WHERE packets.sender_agent_id = 'red-1' AND packets.session_id = $1 AND packets.channel = 'INTER_AGENT' ORDER BY seq
"""


TOOLS = '"from":"tools"'


class Model:
    """What the service answers: an action first, then a long answer; it can hang, and it can write prose."""

    def __init__(self) -> None:
        self.hangs_at = ""
        self.is_hanging = asyncio.Event()
        self.asked: list[str] = []

    async def reply(self, body: dict[str, Any]) -> str:
        """Notes which step of which idea it was asked for."""
        told = [str(message["content"]) for message in body["messages"]]
        idea = next(text for text in reversed(told) if "\nIDEA from" in text).partition('"intent":"')[2][:7]
        step = f"{idea} {2 if TOOLS in told[-1] else 1}"
        if step == self.hangs_at:
            self.is_hanging.set()
            await asyncio.Event().wait()
        self.asked.append(step)
        if idea.startswith("prose"):
            return "Let me think about it."
        if step.endswith("1"):
            return written(actions=[REMEMBER], stop=False)
        return written(response=f"On {idea}: " + "it may be either of them. " * 20)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_worker_keeps_its_agents_mind_over_a_kill_and_accounts_for_it(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> None:
    model = Model()

    async def tell(intent: str) -> None:
        packet = make_packet("librarian", make_idea(intent), ("red-1",), parent=house.opening)
        await house.agents.publish(packet)
        await until(house.is_logged(packet.packet_id), 60)

    async def is_paid_for() -> bool:
        row = await get_session(house.pool, SESSION)
        return row is not None and row.document.spent.get("tokens", 0) >= ANSWERS * TOKENS

    async with house.persister(), house.gate(), model_service(model.reply) as service:
        settings = {
            "APC_LLM_MODEL": "small",
            "APC_LLM_BASE_URL": service.url,
            "APC_LLM_API_KEY": "sk-1",
            "APC_LLM_INPUT_PRICE": str(INPUT_PRICE),
            "APC_LLM_OUTPUT_PRICE": str(OUTPUT_PRICE),
            "APC_LLM_OUTPUT_RETRIES": "1",
        }
        worker = WorkerProcess("thinking_agent:agent", amqp_vhost_url, postgres_url, tmp_path, **settings)
        await house.open_session()
        model.hangs_at = f"idea {IDEAS - 2:02} 2"
        async with worker.running() as process:
            for number in range(IDEAS - 1):
                await tell(f"idea {number:02}. " + "Is it the valve, or is it the pump? " * 5)
            await model.is_hanging.wait()
            process.kill()
            assert await process.wait() == -signal.SIGKILL
        model.hangs_at = ""
        async with worker.running():
            await until(house.has_nothing_open, 60)
            await tell(f"idea {IDEAS - 1:02}. " + "Is it the valve, or is it the pump? " * 5)
            await tell("prose..")
            await until(is_paid_for, 60)
        packets = [(row["packet_type"], row["code"]) for row in await house.pool.fetch(TOLD, SESSION)]
        row = await get_session(house.pool, SESSION)
        state = orjson.loads(await house.pool.fetchval(STATE, SESSION))
    # Each step was answered once, the one that the killed worker waited for as well; what it had been told was kept.
    steps = [f"idea {number:02} {step}" for number in range(IDEAS) for step in (1, 2)]
    assert model.asked == [*steps, "prose.. 1", "prose.. 1"]
    assert packets == [("ERROR", "MODEL_ERROR")]
    assert row is not None
    assert row.document.spent["tokens"] == ANSWERS * TOKENS
    price = ANSWERS * (INPUT_PRICE * PROMPT_TOKENS + OUTPUT_PRICE * COMPLETION_TOKENS) / 1_000_000
    assert row.document.spent["cost"] == pytest.approx(price)
    # The conversation, and what was folded of it, is in the database: any process can go on with it.
    assert state[COMPARTMENTS]["public"]["remembered"] == {"colour": "red"}

    class Kept:
        def __init__(self) -> None:
            self.state = state

    part = Compartment(Kept(), "public")
    archive = MemoryContextStore(PostgresMemoryStore(house.pool), "red-1")
    session = await ContextSession.open(
        SESSION, store=StateContextStore(part, archive, part.archive_prefix), config=CONFIG
    )
    assert session.compressions and session.window.folded
    assert (await session.expand()).missing == ()
    said = [turn.content for turn in session.window.all_turns() if turn.content.startswith("IDEA from")]
    assert [f"idea {number:02}" in text for number, text in enumerate(said)] == [True] * IDEAS

"""A chat in a session of the bus tells the log what it folds."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.integration.agents.worker_process import PYTHONPATH
from tests.integration.conftest import House
from tests.minds.llm.model_service import model_service, written
from tests.support.traffic.packets import SESSION

TOLD = """
SELECT packets.verdict, packets.recipients, bodies.packet -> 'metadata' -> 'context' AS context
FROM apc_log.agent_packets packets JOIN apc_log.packets bodies USING (shard, seq)
WHERE packets.sender_agent_id = 'red-1' AND packets.channel = 'INTRA_AGENT' ORDER BY seq
"""


async def reply(body: dict[str, Any]) -> str:
    """Return a long answer."""
    return written(response="It may be either of them. " * 10)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_the_log_has_the_compressions_of_a_chat_and_refuses_those_of_a_stranger(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> None:
    async with house.persister(), house.gate(), model_service(reply) as service:
        await house.open_session()
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("APC_")}
        settings = {
            "APC_AMQP_URL": amqp_vhost_url,
            "APC_DATABASE_URL": postgres_url,
            "APC_DATA_DIR": str(tmp_path),
            "APC_LLM_MODEL": "small",
            "PYTHONPATH": PYTHONPATH,
            "APC_LLM_BASE_URL": service.url,
        }

        async def chat(agent: str, lines: list[str], session: str = SESSION) -> list[Any]:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "apc_cli", "chat", "--agent", agent, "--session", session,
                cwd=Path(__file__).parent, env=inherited | settings,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            said, _ = await process.communicate("\n".join(lines).encode())
            assert process.returncode == 0
            return [orjson.loads(line) for line in said.splitlines()]

        lines = [f"Question {number}: is it the valve or the pump? " * 5 for number in range(8)]
        *_, stats = await chat("thinking_agent:agent", [*lines, "/stream self.stream.project.stats"])
        refused = await chat("thinking_agent:stranger", ["Hello", "/compress 0.1", "/history"])
        untold = await chat("thinking_agent:agent", ["Hello", "/compress 0.1"], "not-on-the-bus")
        rows = await house.pool.fetch(TOLD)
    assert stats["result"]["compression_count"] == len(rows) > 0
    assert {(row["verdict"], *row["recipients"]) for row in rows} == {("accepted", "red-1")}
    told = [orjson.loads(row["context"]) for row in rows]
    assert all(context["folded"] and context["tokens"]["after"] < context["tokens"]["before"] for context in told)
    assert refused[2]["error"] == "InputUnusable" and "so there is none" in refused[2]["why"]
    assert [one["role"] for one in refused[3]["result"]] == ["user", "assistant"]
    assert refused[3]["status"] == "ready" and untold[2]["status"] == "compressed"

"""The watch on the event loop of a host, and threads beside it."""

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path
from uuid import UUID

import orjson
import pytest
from structlog.testing import capture_logs

from apc_agents import Agent
from apc_agents.running.isolation import ChildThread
from apc_bus.errors import GiveBack
from apc_bus.port import Delivery, Message
from apc_bus.settings import BusSettings, WorkerSettings

BLOCK = """
import asyncio, sys, time
from uuid import UUID
from apc_agents.running.isolation import LoopWatchdog
from apc_agents.running.worker import handling
from apc_bus.telemetry import configure_logs

async def handle():
    handling[asyncio.current_task()] = ("desk", UUID(int=7))
    time.sleep({seconds})
    await asyncio.sleep(0.6)

async def main():
    with LoopWatchdog("h", {limit}).watching():
        await asyncio.sleep(0.6)
        await asyncio.gather(handle(), asyncio.sleep(0))

configure_logs("INFO")
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("seconds", "limit", "code", "last"),
    [(1.5, None, 0, "loop_free_again"), (60.0, 1.0, -signal.SIGKILL, "loop_blocked_too_long")],
    ids=["told", "ended"],
)
def test_who_blocks_the_loop_is_told_and_ended(seconds: float, limit: float | None, code: int, last: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BLOCK.format(seconds=seconds, limit=limit)], capture_output=True, timeout=50, check=False
    )
    lines = [orjson.loads(line) for line in (ended.stdout + ended.stderr).splitlines() if line[:1] == b"{"]
    assert ended.returncode == code, ended.stderr
    # A machine that is busy may hold the loop up before and afterwards, too.
    blocked = next(line for line in lines if line["event"] == "loop_blocked" and "in handle" in line["stack"])
    assert (blocked["host"], blocked["agent_id"], blocked["packet_id"]) == ("h", "desk", str(UUID(int=7)))
    assert last in [line["event"] for line in lines]


@pytest.mark.long
async def test_a_thread_without_a_broker_gives_the_delivery_back_and_tries_again(tmp_path: Path) -> None:
    agent = Agent("desk", role="r", swarm="red", runs="thread")
    settings = WorkerSettings(data_dir=tmp_path, database_url=None)
    child = ChildThread(agent, settings, BusSettings(amqp_url="amqp://127.0.0.1:1"))
    delivery = Delivery(Message(b"", "1"), 1, "host.h.desk", True)
    for _ in range(2):
        error = await child.handle(delivery, is_urgent=False)
        assert isinstance(error, GiveBack) and "127.0.0.1:1" in str(error)
    with capture_logs() as said:
        waiting = asyncio.create_task(child.handle(delivery, is_urgent=False))
        await asyncio.sleep(0)
        (thread,) = (one for one in threading.enumerate() if one.name == "agent desk")
        waiting.cancel()
        await asyncio.wait({waiting})
        await child.close()
        await asyncio.to_thread(thread.join)
    assert "thread_failed" not in [line["event"] for line in said], "nobody waited for it"

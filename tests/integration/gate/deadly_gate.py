"""`apc serve orchestrator` whose process dies of some packets: run by test_deadly_inputs."""

import asyncio
import os
import signal
from typing import Any

from apc_cli.commands.serve import run_orchestrator
from apc_orchestrator.judging.judge import Judge

POISON = "poison"
_judge = Judge.judge


def judge(self: Judge, batch: Any, received: Any, message: Any) -> None:
    """Die without a word, as native code does that runs out of memory."""
    if getattr(received.packet.payload, "intent", None) == POISON:
        os.kill(os.getpid(), signal.SIGKILL)
    _judge(self, batch, received, message)


if __name__ == "__main__":
    Judge.judge = judge  # type: ignore[method-assign]  # the fault that is tested
    asyncio.run(run_orchestrator())

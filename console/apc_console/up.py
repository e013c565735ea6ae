"""`apc up`: everything, in this process or in supervised ones."""

import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from apc_agents.loading import load_agent
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_console.logs import configure
from apc_console.running import stop_on_signals
from apc_console.settings import ConsoleSettings
from apc_console.system import System, has_broker


async def run_everything(modules: Sequence[str]) -> None:
    """Run until SIGTERM, then drain.

    Args:
        modules: `module:agent` of each agent to run beside the services.
    """
    configure(ConsoleSettings().log_level)
    began = time.monotonic()
    stop = stop_on_signals()
    async with _system(modules) as system:
        _say(f"ready after {time.monotonic() - began:.1f} s; Ctrl-C or SIGTERM ends it")
        await system.run(stop)
        _say("draining")


@asynccontextmanager
async def _system(modules: Sequence[str]) -> AsyncIterator[System]:
    settings, database = BusSettings(), DatabaseSettings()
    agents = [load_agent(module) for module in modules]
    if has_broker(settings, database):
        from apc_console.supervised_system import AgentProcess, run_supervised

        async with run_supervised(settings, database, [AgentProcess(module) for module in modules]) as supervised:
            yield supervised
    else:
        from apc_console.embedded_system import run_embedded

        _say(
            f"one process, in-process bus, data in {settings.data_dir}: for development; "
            "packets in flight end with it, the log stays"
        )
        async with run_embedded(settings, database) as embedded:
            await embedded.start_agents(agents)
            yield embedded


def _say(sentence: str) -> None:
    print(f"apc up: {sentence}", file=sys.stderr, flush=True)

"""`apc up`: everything, in this process or in supervised ones."""

import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from apc_agents.team import load_documents, load_members
from apc_bus.chaos import load_profile
from apc_bus.settings import BusSettings, ConsoleSettings, DatabaseSettings, WebSettings
from apc_console.output.terminal import echo
from apc_console.system.beside import check_console, console_beside
from apc_console.system.chaos import Scorer, prepare
from apc_console.system.logs import configure
from apc_console.system.running import stop_on_signals
from apc_console.system.system import System, has_broker, refuse_people


async def run_everything(
    modules: Sequence[str], profile: Path | None, people: Mapping[str, str], *, ui: bool = False
) -> None:
    """Run until SIGTERM, then drain.

    Args:
        modules: `module:agent` or `module:team` of each agent and team to run beside the services.
        profile: faults to inject into the agents' messages; a scorecard is printed at the end.
        people: the role of each person for whom a system without a broker speaks, by id.
        ui: serve the web console beside it.

    Raises:
        ChaosProfileInvalid: the file holds no profile; nothing was started.
        InputUnusable: the web console cannot serve with these settings, or people are named with a broker; nothing
    was started.
    """
    configure(ConsoleSettings().log_level)
    began = time.monotonic()
    stop = stop_on_signals()
    settings = BusSettings()
    if profile is not None:
        load_profile(profile)
        settings = BusSettings(chaos_profile=profile, chaos_scores=prepare(settings.data_dir))
    if ui:
        check_console()
    async with _system(modules, settings, people) as system, console_beside() as console:
        started_in = timedelta(seconds=time.monotonic() - began)
        scores = settings.chaos_scores
        scorer = None if scores is None else await Scorer.start(system.pool, scores, started_in)
        _say(f"ready after {started_in.total_seconds():.1f} s; Ctrl-C or SIGTERM ends it")
        if ui:
            await console.open()
        await system.run(stop)
        _say("draining")
        if scorer is not None:
            await system.drain()
            await scorer.finish()


@asynccontextmanager
async def _system(modules: Sequence[str], settings: BusSettings, people: Mapping[str, str]) -> AsyncIterator[System]:
    database = DatabaseSettings()
    members = {name: agent for module in modules for name, agent in load_members(module).items()}
    documents = load_documents(modules)
    if has_broker(settings, database):
        refuse_people(people)
        from apc_client.registration import register_folder, register_operator, register_schemas
        from apc_console.connections.broker import open_bus
        from apc_console.system.supervised import AgentProcess, run_supervised

        processes = [AgentProcess(name, _chaos(settings)) for name in members]
        async with run_supervised(settings, database, processes) as supervised:
            async with open_bus(settings) as bus:
                if settings.contracts is not None:
                    await register_folder(bus, supervised.pool, settings.shards, settings.contracts)
                await register_operator(bus, supervised.pool, settings.shards, WebSettings().web_operator)
                if documents:
                    await register_schemas(bus, supervised.pool, settings.shards, documents)
            yield supervised
    else:
        from apc_client.in_process import run_embedded

        _say(
            f"one process, in-process bus, data in {settings.data_dir}: for development; "
            "packets in flight end with it, the log stays"
        )
        async with run_embedded(settings, database) as embedded:
            if documents:
                await embedded.register_schemas(documents)
            await embedded.register_people(people)
            await embedded.start_agents(list(members.values()))
            yield embedded


def _chaos(settings: BusSettings) -> dict[str, str]:
    """Return additions to the environment of an agent's process."""
    named = {"APC_CHAOS_PROFILE": settings.chaos_profile, "APC_CHAOS_SCORES": settings.chaos_scores}
    return {name: str(path.absolute()) for name, path in named.items() if path is not None}


def _say(sentence: str) -> None:
    echo(f"apc up: {sentence}", file=sys.stderr, flush=True)

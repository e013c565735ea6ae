"""`apc up`: everything, in this process or in supervised ones."""

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg

from apc_agents.team import load_contract_files, load_documents, load_members
from apc_bus.chaos import Score, load_profile
from apc_bus.folders import make_private_file, make_private_folder
from apc_bus.settings import BusSettings, ConsoleSettings, DatabaseSettings, WebSettings
from apc_cli.errors import LogDiffers
from apc_cli.output.output import print_json, to_json
from apc_cli.output.terminal import echo
from apc_cli.system.running import configure, end_process, stop_on_signals
from apc_cli.system.system import System, has_broker, refuse_people
from apc_contracts.text import numbered
from apc_log.queries.health import count_conflicts, count_deliveries, count_retried, count_verdicts, find_logged

if TYPE_CHECKING:
    from apc_cli.system.a2a import ReadyDoor

# The web console beside a command: option `--ui` of `apc up`, `apc run` and `apc automl run`.

PORT = 8083
"""What `apc ui` listens on; supervised, it takes a free one when this is taken."""
_END = timedelta(seconds=10)
"""From SIGTERM to SIGKILL."""


class ConsoleBeside:
    """The web console in a second process, which ends with this one, however that ends."""

    def __init__(self) -> None:
        self._process: Process | None = None

    async def open(self, *options: str) -> None:
        """Start it; the log has to be there. It prints its address itself, or in one line why it cannot serve."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "apc_cli",
            "ui",
            "--listen",
            f"127.0.0.1:{PORT}",
            *options,
            env=os.environ | {"APC_SUPERVISED": "true"},
            stdin=PIPE,
            stdout=DEVNULL,
            start_new_session=True,  # Ctrl-C reaches only us
        )

    async def stay(self, say: Callable[[], None] = lambda: None) -> None:
        """Say something, and wait until it ends, or until Ctrl-C or SIGTERM: from the first word on they end the wait.

        Where it is not open, say it and return.
        """
        if self._process is None or self._process.returncode is not None:
            say()
            return
        stop = asyncio.create_task(stop_on_signals().wait())
        say()
        ended = asyncio.create_task(self._process.wait())
        await asyncio.wait({stop, ended}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        ended.cancel()

    async def close(self) -> None:
        """End it; idempotent."""
        if self._process is not None:
            await end_process(self._process, _END)


def check_console() -> None:
    """Raise InputUnusable when the web console could not serve with these settings: before anything is started."""
    from apc_cli.commands.ui import reach_of  # the server's libraries, for those alone who want the console

    reach_of(f"127.0.0.1:{PORT}", WebSettings())


@asynccontextmanager
async def console_beside() -> AsyncIterator[ConsoleBeside]:
    """Yield a web console that is not open yet; leaving the context ends it."""
    console = ConsoleBeside()
    try:
        yield console
    finally:
        await console.close()


# The scorecard of `apc up --chaos`: the injected faults, and what became of the packets.

SCORES = "chaos"
"""Folder in the data folder: one file per agent process, and the scorecard of the last run."""
SCORECARD = "scorecard.json"
SHOWN = 5
SOME_TIME_AGO = "SELECT now() - $1::interval"


@dataclass(frozen=True, slots=True)
class Scorecard:
    """The result of a run under chaos. Counts of the log cover everything since the run began."""

    struck: Mapping[str, int]
    confirmed: int
    """Packets that the broker confirmed to agents, without HEARTBEATs."""
    lost: tuple[str, ...]
    """Those of them that the log does not hold: there must be none."""
    in_doubt: int
    """Packets whose publish had an unknown outcome and was not repeated."""
    in_doubt_and_logged: int
    """Those of them that were logged."""
    verdicts: Mapping[str, int]
    set_aside: Mapping[str, int]
    deliveries: Mapping[str, int]
    retried: int


class Scorer:
    """Keeps the score of one run of `apc up --chaos`; `began` is the database's time at its start."""

    def __init__(self, pool: asyncpg.Pool, folder: Path, began: datetime) -> None:
        self._pool = pool
        self._folder = folder
        self._began = began

    @classmethod
    async def start(cls, pool: asyncpg.Pool, folder: Path, ago: timedelta) -> "Scorer":
        """Start the score of a run that began `ago` earlier; agents' processes leave their scores in `folder`."""
        return cls(pool, folder, await pool.fetchval(SOME_TIME_AGO, ago))

    async def finish(self) -> None:
        """Print the scorecard and save it, once everything is drained.

        Raises:
            LogDiffers: a packet that the broker confirmed is not in the log.
        """
        scorecard = await self._add_up(Score.read(self._folder))
        document = asdict(scorecard)
        make_private_file(self._folder.parent / SCORECARD)
        (self._folder.parent / SCORECARD).write_bytes(to_json(document))
        print_json(document)
        if scorecard.lost:
            shown = ", ".join(scorecard.lost[:SHOWN])
            lost = numbered(len(scorecard.lost), "confirmed packet is", "confirmed packets are")
            raise LogDiffers(f"{lost} not in the log: {shown}")

    async def _add_up(self, score: Score) -> Scorecard:
        ids = [UUID(one) for one in score.confirmed | score.unknown]
        logged = await find_logged(self._pool, ids)
        return Scorecard(
            struck=dict(sorted(score.struck.items())),
            confirmed=len(score.confirmed),
            lost=tuple(sorted(score.confirmed - logged)),
            in_doubt=len(score.unknown),
            in_doubt_and_logged=len(score.unknown & logged),
            verdicts=await count_verdicts(self._pool, self._began),
            set_aside=await count_conflicts(self._pool, self._began),
            deliveries=await count_deliveries(self._pool, self._began),
            retried=await count_retried(self._pool, self._began),
        )


def prepare(data_dir: Path) -> Path:
    """Return an empty folder for the scores of a run."""
    folder = data_dir / SCORES / "agents"
    make_private_folder(folder)
    for path in folder.glob("*.json"):
        path.unlink()
    return folder


async def run_everything(
    modules: Sequence[str],
    profile: Path | None,
    people: Mapping[str, str],
    *,
    ui: bool = False,
    a2a: str | None = None,
) -> None:
    """Run until SIGTERM, then drain.

    Args:
        modules: `module:agent` or `module:team` of each agent and team to run beside the services.
        profile: faults to inject into the agents' messages; a scorecard is printed at the end.
        people: the role of each person for whom a system without a broker speaks, by id.
        ui: serve the web console beside it.
        a2a: `module:team` of a team to run and to serve over A2A.

    Raises:
        ChaosProfileInvalid: the file holds no profile; nothing was started.
        InputUnusable: the web console or the door of A2A cannot serve with these settings, or people are named with
    a broker; nothing was started.
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
    if a2a is not None:
        modules = list(dict.fromkeys([*modules, a2a]))
    async with AsyncExitStack() as stack:
        door = None if a2a is None else stack.enter_context(_door_of(a2a))
        system = await stack.enter_async_context(_system(modules, settings, people))
        console = await stack.enter_async_context(console_beside())
        if door is not None:
            await stack.enter_async_context(door.beside(system))
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


def _door_of(team: str) -> "AbstractContextManager[ReadyDoor]":
    from apc_cli.system.a2a import ready_door  # the libraries of A2A, for those alone who want the door

    return ready_door(team, is_local=True)


@asynccontextmanager
async def _system(modules: Sequence[str], settings: BusSettings, people: Mapping[str, str]) -> AsyncIterator[System]:
    database = DatabaseSettings()
    members = {name: agent for module in modules for name, agent in load_members(module).items()}
    documents, contracts = load_documents(modules), load_contract_files(modules)
    if has_broker(settings, database):
        refuse_people(people)
        from apc_cli.connections import open_bus
        from apc_cli.system.supervisor import AgentProcess, run_supervised
        from apc_client.registration import register_file, register_folder, register_operator, register_schemas

        processes = [AgentProcess(name, _chaos(settings)) for name in members]
        async with run_supervised(settings, database, processes) as supervised:
            async with open_bus(settings) as bus:
                if settings.contracts is not None:
                    await register_folder(bus, supervised.pool, settings.shards, settings.contracts)
                await register_operator(bus, supervised.pool, settings.shards, WebSettings().web_operator)
                if documents:
                    await register_schemas(bus, supervised.pool, settings.shards, documents)
                for file in contracts:
                    await register_file(bus, supervised.pool, settings.shards, file)
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
            for file in contracts:
                await embedded.register_contract(file)
            await embedded.register_people(people)
            await embedded.start_agents(list(members.values()))
            yield embedded


def _chaos(settings: BusSettings) -> dict[str, str]:
    """Return additions to the environment of an agent's process."""
    named = {"APC_CHAOS_PROFILE": settings.chaos_profile, "APC_CHAOS_SCORES": settings.chaos_scores}
    return {name: str(path.absolute()) for name, path in named.items() if path is not None}


def _say(sentence: str) -> None:
    echo(f"apc up: {sentence}", file=sys.stderr, flush=True)
